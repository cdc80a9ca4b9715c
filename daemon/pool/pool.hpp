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

/// The client that asked for a session. The caller supplies the token, so that this folder needs no
/// random numbers.
struct SessionSpec {
  std::string name;
  std::uint32_t pid = 0;
  std::string peer;              ///< for people
  std::string owner;             ///< the peer without what changes between its runs, for people
  std::string token;             ///< the secret that later requests must carry
  std::string certificate = {};  ///< "job trainer": who opens it; empty: no certificate was shown
};

/// One granted segment, from the promise of its bytes until they are free again.
///
///   kPreparing --activate--> kLive --end--> kEnding --forget--> (gone)
///   kPreparing --end--> kEnding: its session ended while its memory was made
struct SegmentRecord {
  enum class State : std::uint8_t { kPreparing, kLive, kEnding };
  SegmentId id;
  SessionId session;
  std::uint64_t offset_bytes = 0;  ///< in this node's DDR
  std::string driver;
  std::optional<NumaNode> numa;  ///< the node of its share; nullopt if the pool is not divided
  State state = State::kPreparing;
};

/// Why a session ended that its job did not close.
enum class SessionEnd : std::uint8_t { kLapsed, kEvicted, kLeftBehind };

/// What a session is, besides what it holds.
struct SessionFacts : SessionSpec {
  SessionId id;
  TimePoint opened;
  TimePoint lease_end;
};

struct SessionRecord : SessionFacts {
  std::set<SegmentId> segments = {};  ///< kPreparing and kLive
};

/// Decides which bytes of this node belong to which session, and until when. No I/O, no memory, no
/// threads; the caller passes the time. Owner: the control thread.
///
/// Bytes count as granted from reserve() to forget(). An address may be reused after forget(); ids
/// of segments and sessions are never reused.
class Pool {
 public:
  enum class Drained : std::uint8_t { kNo, kYes };
  struct Options {
    NodeId node;
    std::string node_name;
    std::string rack = {};             ///< nodes of one rack can be lost together; empty: not known
    std::uint64_t capacity_bytes = 0;  ///< a multiple of segment_bytes
    std::uint64_t segment_bytes = 0;
    Duration lease{};
    std::size_t sessions_max = 4096;
    std::vector<NumaShare> numa;  ///< their sum is capacity_bytes; empty: not divided
  };

  Pool(Options options, TimePoint now);

  /// @return kExhausted: too many sessions. kUnavailable: as check_open().
  [[nodiscard]] Result<SessionId> open_session(SessionSpec spec, TimePoint now);
  /// @return kNotFound: no such session, or it has ended (the message has the reason).
  /// kPermissionDenied: wrong token.
  [[nodiscard]] Result<void> authenticate(SessionId session, const std::string& token) const;
  /// Restarts the lease of an existing session.
  void renew(SessionId session, TimePoint now);

  /// Reserves whole segments, all or none, from the share of `near` as far as it suffices. A node
  /// without a share is ignored.
  /// @return their ids, in state kPreparing. kInvalidArgument: no bytes. kExhausted: "needs X, pool
  /// has Y on node ...". kUnavailable: as check_open().
  [[nodiscard]] Result<std::vector<SegmentId>> reserve(SessionId session, std::uint64_t bytes,
                                                       const std::string& driver,
                                                       std::optional<NumaNode> near = {});
  /// Call it when memory and key exist. @return false: the session ended meanwhile, and the segment
  /// is kEnding.
  [[nodiscard]] bool activate(SegmentId segment);
  /// The session returns segments. @return kNotFound: one of them is not live or belongs to another
  /// session; nothing changes then.
  [[nodiscard]] Result<void> release(SessionId session, const std::vector<SegmentId>& segments);
  /// The segment could not be made: kPreparing -> kEnding (or it is already kEnding).
  void abandon(SegmentId segment);
  /// The memory is freed, so its bytes are free.
  void forget(SegmentId segment);

  /// Remembers why a session ends that its job did not close, for authenticate().
  void note_end(SessionId session, SessionEnd why);
  /// Removes the session. @return its live segments, which are kEnding now. Segments in kPreparing
  /// become kEnding too; activate() reports them.
  [[nodiscard]] std::vector<SegmentId> close_session(SessionId session);

  /// Call it once tick_period() has passed since the last call; an earlier call does no harm. If a
  /// call is late by four periods or more (a tenth of the lease, 0.2 s to 1 s; 0.2 s while
  /// draining), the process did not run (it was stopped or suspended). That time does not count
  /// against leases, but no lease ends later than one lease from now. A shorter delay counts.
  /// @return sessions whose lease has ended.
  [[nodiscard]] std::vector<SessionId> tick(TimePoint now);
  /// Whether the last tick() added the time of a stop to leases.
  [[nodiscard]] bool leases_moved() const { return leases_moved_; }
  /// A fortieth of the lease, 50 ms to 250 ms; 50 ms while draining.
  [[nodiscard]] Duration tick_period() const;

  // Taking over what an earlier process left, before the first request.

  /// A session as it was, with its id and the end of its lease. @return kExhausted: too many.
  [[nodiscard]] Result<void> adopt(SessionRecord session);
  /// A segment of such a session, with its id and its place: in state kPreparing.
  /// @return kExhausted: the pool is smaller now. kConflict: its place or its id is taken.
  [[nodiscard]] Result<void> adopt(SegmentRecord segment);
  /// Ids below these have been given.
  void skip_ids(SessionId next_session, SegmentId next_segment);
  /// Remembers that a session was not taken over, for authenticate().
  void note_left_behind(SessionId session);

  /// The daemon ends: for good. @param end  when its sessions end with it; nullopt: they do not.
  void start_draining(std::optional<TimePoint> end = {}) {
    draining_ = true;
    drain_end_ = end;
  }
  [[nodiscard]] bool draining() const { return draining_; }
  [[nodiscard]] std::optional<TimePoint> drain_end() const { return drain_end_; }
  /// An administrator empties the node, or no longer.
  void set_drained(Drained drained) { drained_ = drained; }
  [[nodiscard]] bool drained() const { return drained_ == Drained::kYes; }
  /// @return kUnavailable: nothing new is given out, and why.
  [[nodiscard]] Result<void> check_open() const;

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
  std::map<SessionId, SessionEnd> ends_;  ///< at most kEndsKept, the latest sessions
  std::map<SegmentId, SegmentRecord> segments_;
  std::set<std::uint64_t> freed_offsets_;  ///< used before, and free
  std::uint64_t next_offset_ = 0;          ///< the first offset that was never used
  std::vector<NumaShare> numa_;
  std::uint64_t next_session_ = 1;
  std::uint64_t next_segment_ = 1;
  TimePoint last_tick_;
  bool leases_moved_ = false;
  bool draining_ = false;
  std::optional<TimePoint> drain_end_;
  Drained drained_ = Drained::kNo;
  Duration promised_;  ///< from the last tick to the next
};

/// Compares secrets. Takes a time that depends only on their lengths.
[[nodiscard]] bool equal_secrets(const std::string& a, const std::string& b);

}  // namespace ho::daemon
