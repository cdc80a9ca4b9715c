#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "client/transfer/command_ring.hpp"
#include "client/transfer/mover.hpp"
#include "client/transfer/node_fault.hpp"
#include "client/transfer/ticks.hpp"
#include "client/transfer/transfer_source.hpp"
#include "common/base/clock.hpp"
#include "common/base/grow_only.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// A node as the transfer thread knows it.
struct EngineNode {
  std::string label;  ///< for people: "node 2 (b, unix:/run/x.sock)"
  DriverIndex driver;
  transport::PeerId peer;
  std::shared_ptr<NodeFault> fault;
};

/// The transfer thread of one pool: owns the transports and the mover; drives what is attached
/// (loaded schedules) and takes plain transfers from the job's threads.
///
/// Lifecycle: create -> add_driver/add_node inside call() -> ... -> destructor, which stops the
/// thread; what was attached must be detached and transfers waited for. The thread spins for kSpin
/// after the last event and then sleeps; it never spins with nothing in flight. Not fork-safe: a
/// child process has no transfer thread, so a job forks before it connects.
class Engine {
 public:
  /// Plain transfers that were started and not yet waited for.
  static constexpr std::uint32_t kTicketsMax = 4096;
  static constexpr Duration kSpin = std::chrono::microseconds(30);

  struct Driver {
    std::unique_ptr<transport::Transport> transport;
    DriverPort port;  ///< its transport is filled in
  };

  Engine(std::vector<Driver> drivers, std::shared_ptr<Doorbell> door);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts a plain transfer and sets its owner and cookie. Any thread. @return the ticket; kBusy:
  /// kTicketsMax are in use, or too many commands wait.
  [[nodiscard]] Result<std::uint64_t> start(Transfer transfer);
  /// Whether the ticket's transfer has ended. @return kNotFound: no such ticket any more;
  /// kInvalidArgument: another engine's.
  [[nodiscard]] Result<bool> test(std::uint64_t ticket) const;
  /// Waits for one transfer and gives its outcome; the ticket ends. Bounded by the transfer's
  /// deadline. @return the transfer's own failure; kNotFound, kInvalidArgument: as test().
  [[nodiscard]] Result<void> wait(std::uint64_t ticket);
  /// Waits until no plain transfer touches the arena any more. Their tickets stay. Bounded by the
  /// transfers' deadlines.
  void wait_unused(const ArenaMap* arena);
  /// The same for registered memory.
  void wait_unused(const LocalHandles& memory);

  /// Runs `work` on the transfer thread and waits for it. While it blocks there, so do all
  /// transfers: only connecting to a node may take long.
  template <typename Work>
  auto call(Work&& work) -> std::invoke_result_t<Work&>;

  // Inside call() only.
  [[nodiscard]] transport::Transport& transport(DriverIndex driver);
  [[nodiscard]] Mover& mover() { return mover_; }
  /// The next NodeIndex.
  void add_node(EngineNode node);
  [[nodiscard]] transport::PeerId peer(NodeIndex node) const { return nodes_[node.value()].peer; }
  // While a node's daemon is restarted: Mover::hold(), and its driver's connection ends, but where
  // the bytes move without the daemon.
  void hold(NodeIndex node);
  /// Nothing is under way with the node that a hold keeps back.
  [[nodiscard]] bool quiet(NodeIndex node) const;
  /// The node is reached by `peer` from now on.
  void resume(NodeIndex node, transport::PeerId peer);
  /// As Mover::set_link().
  void set_link(double bytes_per_s);
  /// Once, before the first transfer that names flash.
  void set_stager(std::unique_ptr<Stager> stager, Duration op_deadline);
  /// A number that no other source's transfers carry.
  [[nodiscard]] std::uint32_t reserve_owner();
  /// `source` outlives its detach; its transfers carry `owner`.
  void attach(TransferSource* source, std::uint32_t owner);
  /// @return false: transfers are still in flight, call again.
  [[nodiscard]] bool detach(TransferSource* source);

  [[nodiscard]] const TickClock& ticks() const { return ticks_; }
  void ring() { door_->bell.ring(); }

 private:
  enum class TicketState : std::uint8_t { kFree, kClaimed, kPending, kDone };
  struct Ticket {
    std::atomic<TicketState> state{TicketState::kFree};
    std::atomic<std::uint64_t> number{0};  ///< what the job knows it by, until it is waited for
    std::atomic<const ArenaMap*> arena{nullptr};
    std::atomic<std::uint32_t> memory{0};  ///< the first driver's handle: unique among the living
    Errc code = Errc::kOk;                 ///< written before kDone
    NodeIndex node;
    std::string said;  ///< by the node, of a failed stage; as code
  };
  struct Command {
    enum class Kind : std::uint8_t { kTransfer, kCall, kStop } kind = Kind::kTransfer;
    Transfer transfer;
    void (*run)(void*) = nullptr;
    void* argument = nullptr;
  };
  struct Attached {
    TransferSource* source = nullptr;
    std::uint32_t owner = 0;
  };

  void post_call(void (*entry)(void*), void* argument);
  [[nodiscard]] Ticket* find(std::uint64_t ticket);
  [[nodiscard]] const Ticket* find(std::uint64_t ticket) const;
  [[nodiscard]] Error not_found(std::uint64_t ticket) const;
  void run();
  bool turn();
  bool take_commands();
  bool check_faults();
  bool take_completions();
  void announce_wakes(Awake awake);
  template <typename Uses>
  void wait_until_none(const Uses& uses);
  void report_unresponsive(NodeIndex node);
  void say_late(NodeIndex node);
  void say_in_time();
  void nap(Duration limit);
  [[nodiscard]] std::string said_of(const TransferDone& done) const;

  std::shared_ptr<Doorbell> door_;
  SteadyClock clock_;
  TickClock ticks_;
  const std::uint64_t number_;  ///< in its tickets: of the engines of this process
  std::vector<Ticket> tickets_;
  std::atomic<std::uint32_t> ticket_hint_{0};
  Bell ticket_done_;
  CommandRing<Command> commands_;

  // The transfer thread's own.
  std::vector<Driver> drivers_;
  std::unique_ptr<Stager> stager_;
  Mover mover_;
  GrowOnly<EngineNode> nodes_{kNodesMax};  ///< any thread reads what stays the same of one
  std::vector<Attached> attached_;
  std::vector<std::uint8_t> node_closed_;
  std::vector<std::uint8_t> node_late_;  ///< and the log has said so
  std::uint32_t late_nodes_ = 0;         ///< how many of these
  std::uint32_t next_owner_ = 1;         ///< 0: plain transfers
  std::uint32_t seen_faults_ = 0;
  bool stopping_ = false;
  Command waiting_;  ///< a transfer the mover had no room for
  bool has_waiting_ = false;

  std::thread thread_;  ///< last: starts when all the rest is there
};

template <typename Work>
auto Engine::call(Work&& work) -> std::invoke_result_t<Work&> {
  using Outcome = std::invoke_result_t<Work&>;
  struct Frame {
    std::remove_reference_t<Work>* work;
    std::atomic<bool> done{false};
    Bell bell;
    std::conditional_t<std::is_void_v<Outcome>, char, std::optional<Outcome>> outcome{};
  };
  // Shared: the caller may leave as soon as it sees `done`, while the ring is still under way.
  auto frame = std::make_shared<Frame>();
  frame->work = &work;
  auto* const held = new std::shared_ptr<Frame>(frame);
  post_call(
      [](void* argument) {
        const std::unique_ptr<std::shared_ptr<Frame>> owned(
            static_cast<std::shared_ptr<Frame>*>(argument));
        Frame& it = **owned;
        if constexpr (std::is_void_v<Outcome>) {
          (*it.work)();
        } else {
          it.outcome.emplace((*it.work)());
        }
        it.done.store(true);
        it.bell.ring();
      },
      held);
  for (;;) {
    const std::uint32_t token = frame->bell.token();
    if (frame->done.load()) break;
    frame->bell.wait(token, Duration(-1));
  }
  if constexpr (!std::is_void_v<Outcome>) return std::move(*frame->outcome);
}

}  // namespace ho::client
