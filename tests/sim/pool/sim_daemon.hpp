#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/keep/manifest.hpp"
#include "daemon/membership/member_table.hpp"
#include "daemon/objects/object_directory.hpp"
#include "daemon/pool/pool.hpp"
#include "tests/sim/pool/sim_world.hpp"

namespace ho::test {

/// Ends the handling of an event in a daemon that is killed in the middle of it.
struct DaemonKilled {};

using SimMemory = std::vector<std::byte>;

/// A granted segment, as jobs hear of it.
struct SimGrant {
  SegmentId id;
  std::uint64_t length_bytes = 0;
  std::string key;
  std::uint64_t instance = 0;  ///< the daemon's
};

/// What a job hears of a node's room.
struct SimStatus {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t granted_bytes = 0;
  bool draining = false;
};

template <typename T>
using SimReply = std::function<void(Result<T>)>;

/// What the checker knows of a session, apart from the daemon.
struct SessionTruth {
  TimePoint renewed;
  Duration stood_still{};        ///< since then: the daemon was stopped, or there was none
  std::uint32_t pauses = 0;      ///< since then
  Duration early{};              ///< what of them may count against the lease
  std::set<SegmentId> segments;  ///< whose grant was answered, or is in the manifest
  std::string token;
};

/// A machine of the pool, and what outlives its daemon: systemd's descriptor store, with the
/// memory of segments and the manifest. Stands for daemon/keep/fd_store.
class SimMachine {
 public:
  SimMachine(SimWorld& world, std::uint32_t node, std::string rack);
  ~SimMachine();

  /// A daemon begins. It takes over what the last one left.
  void start();
  /// The process is gone, at once. @param lose  with the machine: nothing is left.
  enum class Left : std::uint8_t { kKept, kNothing };
  void kill(Left left);

  const std::uint32_t node;
  const NodeId id;
  const std::string rack;
  std::unique_ptr<SimDaemon> process;
  bool stopped = false;
  bool drained = false;  ///< as its administrator wants it
  std::uint64_t incarnation = 0;
  std::uint64_t instances = 0;
  std::uint64_t generation = 0;  ///< the manifest's
  TimePoint stood_since;         ///< stopped, or without a process, since then
  std::vector<std::uint64_t> manifest;
  std::map<SegmentId, std::shared_ptr<SimMemory>> store;
  /// The next append to the manifest is cut there: before it, within, or after it.
  std::optional<std::uint32_t> cut_append;
  bool torn = false;  ///< the last process was killed within an append

  // The checker's.
  std::map<SessionId, SessionTruth> truth;
  std::set<std::uint64_t> session_ids;
  std::set<std::uint64_t> segment_ids;
  std::vector<std::shared_ptr<SimMemory>> freed;  ///< filled with a pattern

  /// The daemon did not run from `stood_since` until now.
  void note_pause();
  void check_left(const daemon::Kept& kept);

 private:
  SimWorld& world_;
};

/// A daemon process. The pool, the manifest's log, the list of members and the directory of objects
/// are the real ones. What production does between them with threads and sockets is modelled here:
/// daemon/control/{service,service_objects}, daemon/grant/{grants,shares}, daemon/takeover,
/// daemon/keep/keeper and daemon/membership/membership.
class SimDaemon {
 public:
  SimDaemon(SimWorld& world, SimMachine& machine);
  ~SimDaemon();

  void take_over();
  /// Events that wait while the process is stopped.
  std::deque<std::function<void(SimDaemon&)>> inbox;
  void go_on();

  // Requests. Each answers once, unless the process ends before.
  [[nodiscard]] HelloReply hello() const;
  [[nodiscard]] std::vector<NodeInfo> list_nodes() const;
  [[nodiscard]] SimStatus status() const;
  void open_session(const std::string& job, const SimReply<Session>& reply);
  void renew(SessionId session, const std::string& token, const SimReply<RenewedLease>& reply);
  void grant(SessionId session, const std::string& token, std::uint64_t bytes,
             const SimReply<std::vector<SimGrant>>& reply);
  void release(SessionId session, const std::string& token, const std::vector<SegmentId>& segments,
               const SimReply<bool>& reply);
  void close_session(SessionId session, const std::string& token, const SimReply<bool>& reply);
  void resume(SessionId session, const std::string& token, std::uint64_t incarnation,
              const SimReply<ResumedSession>& reply);
  void set_drained(bool drained);

  // Published objects: sim_objects.cpp.
  /// Access to a part that is open.
  struct OpenPart {
    std::uint64_t hold = 0;
    SimGrant segment;
  };
  void publish(SessionId session, const std::string& token, const ObjectPart& part,
               const SimReply<bool>& reply);
  void drop(SessionId session, const std::string& token, const ObjectPartId& id,
            const SimReply<bool>& reply);
  [[nodiscard]] std::vector<ObjectPart> find_parts() const;
  void open_part(SessionId session, const std::string& token, const ObjectPartId& id,
                 const SimReply<OpenPart>& reply);
  void close_part(SessionId session, const std::string& token, std::uint64_t hold,
                  const SimReply<bool>& reply);

  [[nodiscard]] std::uint64_t instance() const { return instance_; }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const daemon::Pool& pool() const { return pool_; }
  [[nodiscard]] std::shared_ptr<SimMemory> memory(SegmentId segment) const;
  /// Numbers add up.
  void check() const;

 private:
  void tick();
  void look_at_book();
  void sign_in();
  void keep(daemon::ManifestEntry entry);
  void rewrite(daemon::Kept state);
  void end_session(SessionId session, const std::function<void()>& done);
  void end_segments(const std::vector<SegmentId>& segments, const std::function<void()>& done);
  void make(SessionId session, const std::vector<SegmentId>& segments,
            const SimReply<std::vector<SimGrant>>& reply);
  void expose(SegmentId segment, const std::shared_ptr<SimMemory>& memory);
  void check_lapse(SessionId session) const;
  template <typename Ends>
  void end_shares(const Ends& ends);
  [[nodiscard]] SimGrant granted(SegmentId segment) const;

  SimWorld& world_;
  SimMachine& machine_;
  const std::uint64_t instance_;
  const std::string address_;
  daemon::Pool pool_;
  std::optional<daemon::ManifestLog> log_;
  daemon::ObjectDirectory objects_;
  /// Access of one session to a segment of another, by its hold.
  struct Share {
    SessionId session;
    SegmentId segment;
    std::string key;
  };
  std::map<std::uint64_t, Share> shares_;
  std::optional<daemon::MemberTable> members_;
  bool listed_ = false;
  std::map<SegmentId, std::string> keys_;
  std::size_t wiping_ = 0;           ///< segments whose memory is being freed
  std::shared_ptr<SimMemory> used_;  ///< planted: memory to be given again
};

}  // namespace ho::test
