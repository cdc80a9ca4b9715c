#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/address.hpp"
#include "daemon/pool/numa_shares.hpp"

namespace ho::daemon {

/// Who asked for a session. The token comes from outside so that this folder needs no randomness.
struct SessionSpec {
  std::string name;
  std::uint32_t pid = 0;
  std::string peer;   ///< for people
  std::string token;  ///< the secret that later requests must show
};

/// One granted segment, from the moment its bytes are promised until they are free again.
///
///   kPreparing --activate--> kLive --end--> kEnding --forget--> (gone)
///   kPreparing --end--> kEnding: its session went away while its memory was made
struct SegmentRecord {
  enum class State : std::uint8_t { kPreparing, kLive, kEnding };
  SegmentId id;
  SessionId session;
  std::uint64_t offset_bytes = 0;  ///< in this node's DDR
  std::string driver;
  std::optional<NumaNode> numa;  ///< whose share it is of; nothing where the pool is not divided
  State state = State::kPreparing;
};

struct SessionRecord {
  SessionId id;
  std::string name;
  std::uint32_t pid = 0;
  std::string peer;
  std::string token;
  TimePoint opened;
  TimePoint lease_end;
  std::set<SegmentId> segments;  ///< kPreparing and kLive
};

/// Which bytes of this node are promised to whom, and until when. Decides only: no I/O, no memory,
/// no threads; time comes in as an argument. Owner: the control thread.
///
/// Bytes count as granted from reserve() to forget(). An address may be used again after forget();
/// segment and session ids never are.
class Pool {
 public:
  struct Options {
    NodeId node;
    std::string node_name;
    std::uint64_t capacity_bytes = 0;  ///< a multiple of segment_bytes
    std::uint64_t segment_bytes = 0;
    Duration lease{};
    std::size_t sessions_max = 4096;
    std::vector<NumaShare> numa;  ///< capacity_bytes together, or none: not divided
  };

  Pool(Options options, TimePoint now);

  /// @return kExhausted: too many sessions. kUnavailable: draining.
  [[nodiscard]] Result<SessionId> open_session(SessionSpec spec, TimePoint now);
  /// @return kNotFound: no such session (any more). kPermissionDenied: not its token.
  [[nodiscard]] Result<void> authenticate(SessionId session, const std::string& token) const;
  /// Restarts the lease of an existing session.
  void renew(SessionId session, TimePoint now);

  /// Promises whole segments, all or none, from the share of `near` as far as it goes (any value:
  /// one that has no share is no wish). @return their ids, in state kPreparing. kInvalidArgument:
  /// no bytes. kExhausted: "needs X, pool has Y on node ...". kUnavailable: draining.
  [[nodiscard]] Result<std::vector<SegmentId>> reserve(SessionId session, std::uint64_t bytes,
                                                       const std::string& driver,
                                                       std::optional<NumaNode> near = {});
  /// Memory and key are there. @return false: the session has gone meanwhile, the segment is
  /// kEnding.
  [[nodiscard]] bool activate(SegmentId segment);
  /// Its owner gives segments back. @return kNotFound: one of them is not this session's, or not
  /// live; nothing changes then.
  [[nodiscard]] Result<void> release(SessionId session, const std::vector<SegmentId>& segments);
  /// A segment that could not be made: kPreparing -> kEnding (or already there).
  void abandon(SegmentId segment);
  /// Its memory is gone: the bytes are free.
  void forget(SegmentId segment);

  /// Removes the session. @return its live segments, now kEnding; those kPreparing become kEnding
  /// too and are found out by activate().
  [[nodiscard]] std::vector<SegmentId> close_session(SessionId session);

  /// To be called once tick_period(), as it was after the last call, has passed; earlier does no
  /// harm. A call that comes later than that by four periods (a tenth of the lease, 0.2 s to 1 s;
  /// 0.2 s while draining) or more shows that this process did not run (stopped, suspended): so
  /// much does not count against leases, and no lease ever ends later than one lease from now. A
  /// shorter delay counts. @return sessions whose lease has lapsed.
  [[nodiscard]] std::vector<SessionId> tick(TimePoint now);
  /// A fortieth of the lease, 50 ms to 250 ms; 50 ms while draining.
  [[nodiscard]] Duration tick_period() const;

  void start_draining() { draining_ = true; }
  [[nodiscard]] bool draining() const { return draining_; }

  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] std::uint64_t granted_bytes() const;
  [[nodiscard]] std::uint64_t granted_bytes(SessionId session) const;
  [[nodiscard]] const std::vector<NumaShare>& numa() const { return numa_; }
  [[nodiscard]] const std::map<SessionId, SessionRecord>& sessions() const { return sessions_; }
  [[nodiscard]] const std::map<SegmentId, SegmentRecord>& segments() const { return segments_; }
  [[nodiscard]] const SegmentRecord* find(SegmentId segment) const;
  [[nodiscard]] GlobalAddress address(const SegmentRecord& segment) const;

 private:
  void check_accounting() const;

  const Options options_;
  std::map<SessionId, SessionRecord> sessions_;
  std::map<SegmentId, SegmentRecord> segments_;
  std::set<std::uint64_t> freed_offsets_;  ///< used before and free again
  std::uint64_t next_offset_ = 0;          ///< never used from here on
  std::vector<NumaShare> numa_;
  std::uint64_t next_session_ = 1;
  std::uint64_t next_segment_ = 1;
  TimePoint last_tick_;
  bool draining_ = false;
  Duration promised_;  ///< from the last tick to the next
};

/// Compares secrets in a time that depends on their lengths only.
[[nodiscard]] bool equal_secrets(const std::string& a, const std::string& b);

}  // namespace ho::daemon
