#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/pool/placement/failure_domains.hpp"
#include "client/pool/placement/spread.hpp"
#include "client/replay/replay.hpp"
#include "client/runtime/homes/home_choice.hpp"
#include "client/transfer/mover.hpp"
#include "client/transfer/node_fault.hpp"
#include "common/schedule/schedule.hpp"
#include "tests/sim/pool/sim_daemon.hpp"
#include "tests/sim/pool/sim_world.hpp"
#include "tests/sim/pool/stamps.hpp"

namespace ho::test {

/// The driver of a simulated job. It checks that no operation outlives the lease on the memory.
class JobTransport final : public SimTransport {
 public:
  using LeaseEnd = std::function<TimePoint(transport::RegionId)>;
  using SimTransport::SimTransport;
  LeaseEnd lease_end;
  std::function<void()> outlives;

  [[nodiscard]] Result<void> submit(const transport::MemoryOp& op) override {
    if (op.deadline > lease_end(op.region)) outlives();
    return SimTransport::submit(op);
  }
};

/// Memory of another session that a job reads. Stale once its daemon is restarted.
struct SharedRead {
  client::NodeIndex node;
  SegmentId segment;
  client::ArenaMap map;
  bool stale = false;
};

/// A job: the real mover, replay and executor, and the real rules for homes, spreads, failure
/// domains, leases and restarts. Around them, what production does with threads and sockets is
/// modelled: client/pool/{sessions,pool_resume,pool_new_nodes,renewer},
/// client/transfer/engine and client/runtime/{runtime,homes/storages,homes/home_heap}. Its threads
/// are fibers.
class PoolJob {
 public:
  PoolJob(SimWorld& world, std::uint32_t number);
  ~PoolJob();

  [[nodiscard]] bool over() const { return over_; }
  void kill();
  void pause();
  void go_on();
  void connection_closed();
  /// The machine of a node that it moves bytes from or to.
  [[nodiscard]] std::optional<std::uint32_t> busy_node() const;
  void network_changed(std::uint32_t machine);
  /// All faults are over, and time has passed: nothing is lost, held or copied any more.
  void check_healed();

 private:
  using NodeIndex = client::NodeIndex;
  struct Node {
    std::uint32_t machine = 0;
    std::shared_ptr<SimControl> control;
    std::string address;
    std::uint64_t instance = 0;  ///< the daemon's whose keys are in use
    Session session;
    transport::PeerId peer;
    std::shared_ptr<client::NodeFault> fault;
    TimePoint lease_end;  ///< the checker's
    bool closed = false;  ///< the transfer thread knows that it is lost
    bool drained = false;
    bool forgotten = false;  ///< planted: not renewed any more
    std::optional<TimePoint> gone_since;
    std::uint64_t home_bytes = 0;
    [[nodiscard]] bool lost() const { return fault->reason() != client::FaultReason::kNone; }
  };
  struct HeldSegment {
    NodeIndex node;
    SegmentId id;
    std::uint64_t length_bytes = 0;
  };
  struct Arena {
    client::ArenaMap map;
    std::vector<HeldSegment> segments;
    std::vector<transport::RegionId> regions;
    client::HomeArea area;
  };
  /// A storage with its homes; both of an INPUT's values.
  struct Held {
    std::uint32_t number = 0;
    std::uint64_t bytes = 0;
    std::uint64_t values = 1;
    bool persistent = false;
    bool input = false;
    std::optional<client::HomeNodes> nodes;  ///< where it has two homes
    std::array<Arena*, 2> arenas{};
    client::StorageHome home;
    client::ValuePlace place;  ///< while no run is
    std::uint64_t version = 0;
    std::array<std::uint8_t, 2> missed{};  ///< homes that lack an INPUT, by parity
  };
  struct Ticket {
    bool done = false;
    Errc code = Errc::kOk;
    bool foreign = false;  ///< reads what another session may end at any time
  };

  // Threads of the process.
  void main();
  void work();
  void renew();
  void look_for_lost();
  void at_once(std::size_t count, const std::function<void(std::size_t)>& act);
  Fibers::Fiber* spawn(const std::function<void()>& body);
  void wake_all();

  // The transfer thread.
  void kick(TimePoint time);
  void turn();
  void check_faults();
  void done(const client::TransferDone& done);
  [[nodiscard]] std::uint64_t ticks() const;
  void report_unresponsive(NodeIndex node);
  [[nodiscard]] bool uses(NodeIndex node) const;

  // Nodes: pool_job_nodes.cpp.
  template <typename T>
  [[nodiscard]] Result<T> ask(const std::shared_ptr<SimControl>& control, Duration timeout,
                              std::function<void(SimDaemon&, SimReply<T>)> act);
  template <typename T>
  [[nodiscard]] Result<T> ask_node(NodeIndex node, Duration timeout,
                                   std::function<void(SimDaemon&, SimReply<T>)> act);
  [[nodiscard]] Result<std::shared_ptr<SimControl>> dial(std::uint32_t machine, Duration timeout);
  [[nodiscard]] bool connect();
  [[nodiscard]] Result<void> reach(std::uint32_t machine, Duration timeout);
  void add(Node node);
  void use_new_nodes();
  [[nodiscard]] bool has(std::uint32_t machine) const;
  void renew_all();
  [[nodiscard]] bool try_resume(NodeIndex node);
  [[nodiscard]] Result<void> reconnect(NodeIndex node, const ResumedSession& resumed,
                                       std::uint64_t instance);
  void lose(NodeIndex node, client::FaultReason reason);
  void check_loss(NodeIndex node);
  void close_sessions();

  // Memory and homes: pool_job_homes.cpp.
  [[nodiscard]] Result<Arena*> grant(std::uint64_t bytes, const std::vector<NodeIndex>& from,
                                     std::span<const client::StagingPart> parts = {});
  [[nodiscard]] Result<Arena*> take(const std::vector<client::Stripe>& stripes,
                                    std::set<NodeIndex>& full);
  [[nodiscard]] std::vector<client::NodeRoom> rooms_of(const std::vector<NodeIndex>& nodes);
  void release(Arena* arena);
  [[nodiscard]] std::vector<NodeIndex> present() const;
  [[nodiscard]] client::HomePool home_pool() const;
  [[nodiscard]] Result<void> allocate();
  [[nodiscard]] Result<void> allocate_two(Held& held);
  void name_home(Held& held);
  [[nodiscard]] Result<void> move_now(client::Direction direction, const client::ArenaMap& map,
                                      std::uint64_t offset, std::span<std::byte> memory,
                                      Duration late_after = {});
  /// `memory` lies within what `handles` are for.
  [[nodiscard]] Result<void> move(client::Direction direction, const client::ArenaMap& map,
                                  std::uint64_t offset, std::span<std::byte> memory,
                                  const client::LocalHandles& handles, Duration late_after = {});
  [[nodiscard]] Result<void> put(Held& held, std::uint64_t parity, std::uint8_t& missed);
  [[nodiscard]] Result<void> write(Held& held);
  [[nodiscard]] Result<void> read(const Held& held);
  [[nodiscard]] bool repair();
  [[nodiscard]] bool replace_home(Held& held, const client::LeavingHome& leaving);
  [[nodiscard]] Result<void> copy(const client::HomePlace& from, const client::HomePlace& to,
                                  std::uint64_t bytes);
  [[nodiscard]] bool whole(const Held& held) const;
  void check_homes();
  void check_two_domains();

  // Published objects: pool_job_objects.cpp.
  struct Published {
    ObjectPartId id;
    NodeIndex node;
    Arena* arena = nullptr;
    bool listed = false;  ///< else its memory is free for the next version
  };
  void publish_objects();
  void read_objects();
  [[nodiscard]] bool publish_one();
  void drop_one(Published& one);
  void read_one(NodeIndex node);
  void read_part(NodeIndex node, const ObjectPartId& id, const SimDaemon::OpenPart& open);

  // Steps: pool_job_steps.cpp.
  [[nodiscard]] bool step();
  [[nodiscard]] bool begin_run();
  [[nodiscard]] bool end_run();
  [[nodiscard]] bool stop_run();
  [[nodiscard]] bool take_places();
  [[nodiscard]] bool run_position(std::uint32_t position);
  [[nodiscard]] bool run_op(std::uint32_t position);
  [[nodiscard]] bool check_value(std::uint32_t storage, std::span<const std::byte> bytes,
                                 const std::string& where);
  [[nodiscard]] Stamp stamp_of(const Held& held) const {
    return {number_ + 1, held.number, held.version};
  }
  [[nodiscard]] std::span<std::byte> device(std::uint32_t storage, std::uint64_t offset) {
    return std::span(arena_).subspan(offset, held_[storage].bytes);
  }
  bool fail(const std::string& why);
  void wrong(const std::string& what);
  [[nodiscard]] std::string name() const { return "job " + std::to_string(number_); }

  SimWorld& world_;
  const std::uint32_t number_;
  Prng random_;
  const schedule::Schedule* plan_ = nullptr;
  bool doubled_ = false;
  schedule::Schedule schedule_;
  std::shared_ptr<client::Doorbell> door_ = std::make_shared<client::Doorbell>();
  std::unique_ptr<JobTransport> transport_;
  std::optional<client::Mover> mover_;
  std::vector<std::byte> arena_;
  std::vector<std::byte> bounce_;
  client::LocalHandles arena_handles_{};
  client::LocalHandles bounce_handles_{};
  std::deque<Node> nodes_;
  std::map<transport::RegionId, NodeIndex> region_nodes_;
  std::deque<std::unique_ptr<Arena>> arenas_;
  Arena* shared_ = nullptr;  ///< homes of what does not outlive a step
  std::vector<Held> held_;
  std::optional<client::Replay> replay_;
  bool running_ = false;
  std::uint64_t steps_ = 0;
  std::uint64_t run_steps_ = 0;
  Fibers::Fiber* objects_ = nullptr;  ///< null: it neither publishes nor reads
  std::vector<Published> published_;
  std::uint64_t next_object_ = 1;
  std::vector<std::byte> object_bytes_;
  client::LocalHandles object_handles_{};
  std::optional<SharedRead> shared_read_;
  std::map<std::uint64_t, Ticket> tickets_;
  std::uint64_t next_ticket_ = 0;
  std::optional<TimePoint> next_turn_;
  std::uint64_t turns_ = 0;
  std::vector<Fibers::Fiber*> fibers_;
  std::uint32_t losses_seen_ = 0;
  std::uint32_t loads_ = 0;  ///< that found no two nodes for a value
  std::optional<TimePoint> repair_at_;
  TimePoint look_at_;
  std::map<std::uint32_t, TimePoint> tried_;
  std::optional<std::string> failed_;
  TimePoint paused_until_disturbed_;
  bool paused_ = false;
  bool turn_waits_ = false;
  bool dead_ = false;
  bool over_ = false;
  bool closing_ = false;
  bool renewing_ = false;
};

}  // namespace ho::test
