#include "client/engine.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/signals.hpp"

namespace ho::client {
namespace {

constexpr std::size_t kCommandsMax = 8192;
/// Commands taken per turn, so that completions are never starved by a busy producer.
constexpr int kCommandsPerTurn = 64;
/// Without any event for this long while transfers are in flight the thread yields at every turn,
/// and later sleeps in short slices: on two cores the job and the daemon need the processor more.
constexpr Duration kYieldAfter = std::chrono::microseconds(50);
constexpr Duration kNapAfter = std::chrono::milliseconds(5);
constexpr Duration kNap = std::chrono::microseconds(100);
/// Waiting for flash alone: its answers ring the bell, only deadlines need a look.
constexpr Duration kStageNap = std::chrono::milliseconds(10);
constexpr std::size_t kNamesMax = 8;

std::string names_of(const Link& link, const std::vector<StorageIndex>& storages) {
  std::string text;
  std::size_t named = 0;
  for (const StorageIndex storage : storages) {
    if (named == kNamesMax) {
      return text + " and " + std::to_string(storages.size() - named) + " more";
    }
    text += (named == 0 ? "" : ", ") + link.storage_names[storage.value()];
    named += 1;
  }
  return text;
}

std::vector<DriverPort> ports_of(const std::vector<Engine::Driver>& drivers) {
  std::vector<DriverPort> ports;
  for (const auto& driver : drivers) {
    ports.push_back(driver.port);
    ports.back().transport = driver.transport.get();
  }
  return ports;
}

}  // namespace

Engine::Engine(std::vector<Driver> drivers, std::shared_ptr<Doorbell> door)
    : door_(std::move(door)),
      tickets_(kTicketsMax),
      commands_(kCommandsMax),
      drivers_(std::move(drivers)),
      mover_(ports_of(drivers_), clock_) {
  // The local driver turns these two, of a revoked segment, into an error.
  const SignalsBlocked blocked({SIGBUS, SIGSEGV});
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "ho-transfer");
}

Engine::~Engine() {
  Command stop;
  stop.kind = Command::Kind::kStop;
  while (!commands_.push(stop)) sched_yield();
  ring();
  thread_.join();
}

/// Waits for room where the queue is full: the thread takes commands at every turn, and a transfer
/// that holds them up for want of room in the mover ends by its deadline.
void Engine::post_call(void (*entry)(void*), void* argument) {
  Command command;
  command.kind = Command::Kind::kCall;
  command.run = entry;
  command.argument = argument;
  while (!commands_.push(command)) sched_yield();
  ring();
}

Result<std::uint64_t> Engine::start(Transfer transfer) {
  const std::uint32_t hint = ticket_hint_.fetch_add(1, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < kTicketsMax; ++i) {
    const std::uint32_t index = (hint + i) % kTicketsMax;
    Ticket& ticket = tickets_[index];
    auto expected = TicketState::kFree;
    if (ticket.state.load(std::memory_order_relaxed) != expected ||
        !ticket.state.compare_exchange_strong(expected, TicketState::kClaimed)) {
      continue;
    }
    ticket.arena.store(transfer.arena);
    ticket.memory.store(transfer.local[0].value());
    ticket.state.store(TicketState::kPending);
    Command command;
    command.transfer = transfer;
    command.transfer.owner = 0;
    command.transfer.cookie = index;
    if (!commands_.push(command)) {
      ticket.state.store(TicketState::kFree);
      return Error(Errc::kBusy, "too many commands wait for the transfer thread");
    }
    ring();
    return (std::uint64_t{ticket.generation.load()} << 32U) | (index + 1);
  }
  return Error(Errc::kBusy, "more than " + std::to_string(kTicketsMax) +
                                " transfers are started and not waited for");
}

const Engine::Ticket* Engine::find(std::uint64_t ticket) const {
  const std::uint64_t index = (ticket & UINT32_MAX) - 1;
  if (index >= kTicketsMax) return nullptr;
  const Ticket& found = tickets_[index];
  const TicketState state = found.state.load();
  const bool live = state == TicketState::kPending || state == TicketState::kDone;
  return live && found.generation.load() == ticket >> 32U ? &found : nullptr;
}

Engine::Ticket* Engine::find(std::uint64_t ticket) {
  return const_cast<Ticket*>(static_cast<const Engine*>(this)->find(ticket));
}

Result<bool> Engine::test(std::uint64_t ticket) const {
  const Ticket* const found = find(ticket);
  if (found == nullptr) return Error(Errc::kNotFound, "no such ticket");
  return found->state.load(std::memory_order_acquire) == TicketState::kDone;
}

Result<void> Engine::wait(std::uint64_t ticket) {
  Ticket* const found = find(ticket);
  if (found == nullptr) return Error(Errc::kNotFound, "no such ticket");
  const TimePoint spin_until = clock_.now() + kSpin;
  while (found->state.load(std::memory_order_acquire) != TicketState::kDone) {
    if (clock_.now() < spin_until) {
      spin_pause();
      continue;
    }
    const std::uint32_t token = ticket_done_.token();
    if (found->state.load() == TicketState::kDone) break;
    ticket_done_.wait(token, std::chrono::milliseconds(100));
  }
  const Errc code = found->code;
  const NodeIndex node = found->node;
  const std::string said = std::exchange(found->said, {});
  found->generation.fetch_add(1);
  found->state.store(TicketState::kFree);
  if (code == Errc::kOk) return {};
  // Constant since connect; a transfer cannot have run before.
  const std::string label = node.value() < nodes_.size() ? nodes_[node.value()].label : "a node";
  return Error(code,
               "transfer to or from " + label + " failed" + (said.empty() ? "" : ": " + said));
}

template <typename Uses>
void Engine::wait_until_none(const Uses& uses) {
  for (Ticket& ticket : tickets_) {
    while (ticket.state.load() == TicketState::kPending && uses(ticket)) {
      const std::uint32_t token = ticket_done_.token();
      if (ticket.state.load() != TicketState::kPending) break;
      ticket_done_.wait(token, std::chrono::milliseconds(100));
    }
  }
}

void Engine::wait_unused(const ArenaMap* arena) {
  wait_until_none([&](const Ticket& ticket) { return ticket.arena.load() == arena; });
}

void Engine::wait_unused(const LocalHandles& memory) {
  wait_until_none([&](const Ticket& ticket) { return ticket.memory.load() == memory[0].value(); });
}

transport::Transport& Engine::transport(DriverIndex driver) {
  HO_CHECK(driver.value() < drivers_.size());
  return *drivers_[driver.value()].transport;
}

void Engine::set_nodes(std::vector<EngineNode> nodes) {
  HO_CHECK(nodes_.empty() && nodes.size() <= kNodesMax);
  nodes_ = std::move(nodes);
  std::vector<std::shared_ptr<const NodeFault>> leases;
  for (const EngineNode& node : nodes_) leases.push_back(node.fault);
  mover_.set_leases(std::move(leases));
  node_closed_.assign(nodes_.size(), 0);
  seen_faults_ = 0;
}

void Engine::set_stager(std::unique_ptr<Stager> stager, Duration op_deadline) {
  HO_CHECK(stager_ == nullptr);
  stager_ = std::move(stager);
  StagePort port;
  port.stager = stager_.get();
  port.op_deadline = op_deadline;
  mover_.set_stager(port);
}

std::uint32_t Engine::reserve_owner() { return next_owner_++; }

void Engine::attach(Link* link, std::uint32_t owner) {
  links_.push_back({link, owner});
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (node_closed_[i] != 0 && !link->storages_by_node[i].empty()) {
      fail(links_.back(), nodes_[i].label + " was lost before", NodeIndex(i));
    }
  }
  publish(links_.back());
}

bool Engine::detach(Link* link) {
  const auto at = std::find_if(links_.begin(), links_.end(),
                               [&](const Attached& attached) { return attached.link == link; });
  HO_CHECK(at != links_.end());
  // Nothing new starts; what is in flight ends by its deadline.
  link->replay.fail(Errc::kCanceled, NodeIndex(0));
  if (link->replay.in_flight() > 0) return false;
  links_.erase(at);
  return true;
}

void Engine::fail(Link* link, const std::string& what) {
  for (Attached& attached : links_) {
    if (attached.link == link) fail(attached, what, NodeIndex(UINT32_MAX));
  }
}

void Engine::run() {
  TimePoint last_event = clock_.now();
  while (!stopping_) {
    if (turn()) {
      last_event = clock_.now();
      continue;
    }
    const Duration quiet = clock_.now() - last_event;
    if (mover_.in_flight() > 0) {
      if (quiet > kSpin && mover_.waits_for_stager_only()) {
        nap(kStageNap);
      } else if (quiet > kNapAfter) {
        nap(kNap);
      } else if (quiet > kYieldAfter) {
        sched_yield();
      } else {
        spin_pause();
      }
      continue;
    }
    if (quiet < kSpin) {
      spin_pause();
      continue;
    }
    const std::uint32_t token = door_->bell.token();
    announce_wakes(Awake::kNo);
    if (turn()) {
      last_event = clock_.now();
    } else {
      fail_stuck_links();
      door_->bell.wait(token, Duration(-1));
    }
    announce_wakes(Awake::kYes);
  }
  HO_CHECK(links_.empty());
}

/// Sleeps until the bell rings, for `limit` at most, unless there is something to do.
void Engine::nap(Duration limit) {
  const std::uint32_t token = door_->bell.token();
  announce_wakes(Awake::kNo);
  if (!turn()) door_->bell.wait(token, limit);
  announce_wakes(Awake::kYes);
}

/// One look at everything. @return whether anything happened.
bool Engine::turn() {
  bool busy = take_commands();
  busy |= check_faults();
  for (Attached& attached : links_) busy |= feed(attached);
  busy |= mover_.pump(ticks_.now()) > 0;
  busy |= take_completions();
  return busy;
}

bool Engine::take_commands() {
  bool any = false;
  for (int i = 0; i < kCommandsPerTurn; ++i) {
    if (!has_waiting_ && !commands_.pop(waiting_)) break;
    has_waiting_ = false;
    any = true;
    switch (waiting_.kind) {
      case Command::Kind::kStop: stopping_ = true; break;
      case Command::Kind::kCall: waiting_.run(waiting_.argument); break;
      case Command::Kind::kTransfer:
        if (!mover_.start(waiting_.transfer)) {
          has_waiting_ = true;  // completions come first; order among commands is kept
          return i > 0;
        }
        break;
    }
  }
  return any;
}

bool Engine::check_faults() {
  const std::uint32_t faults = door_->faults.load();
  if (faults == seen_faults_) return false;
  seen_faults_ = faults;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const FaultReason reason = nodes_[i].fault->reason();
    if (reason == FaultReason::kNone || node_closed_[i] != 0) continue;
    node_closed_[i] = 1;
    transport(nodes_[i].driver).close_peer(nodes_[i].peer);
    for (Attached& attached : links_) {
      if (attached.link->storages_by_node[i].empty()) continue;
      fail(attached, "lost " + nodes_[i].label + ": " + std::string(fault_text(reason)),
           NodeIndex(i));
    }
  }
  return true;
}

/// Brings the executor up to what the job has done, and starts what became ready.
bool Engine::feed(Attached& attached) {
  Link& link = *attached.link;
  if (link.replay.failure()) return false;
  Executor& executor = link.replay.executor();
  const auto [finish, begun, ended] = job_progress(link);
  bool changed = false;
  for (;;) {
    const std::uint64_t through = std::min(ended, executor.steps_begun() * link.position_count);
    if (through > executor.positions_ended_count()) {
      const auto accepted = executor.positions_ended(through);
      HO_CHECK(accepted.ok());
      changed = true;
    }
    if (executor.state() != Executor::State::kBetweenSteps) break;
    if (executor.steps_begun() == begun) break;
    const auto accepted = executor.begin_step();
    HO_CHECK(accepted.ok());
    changed = true;
  }
  if (finish && executor.state() == Executor::State::kBetweenSteps &&
      executor.steps_begun() == begun) {
    const auto accepted = link.replay.begin_epilogue(mover_);
    HO_CHECK(accepted.ok());
    changed = true;
  }
  const bool started = link.replay.pump(mover_, ticks_.now()) > 0;
  if (changed) publish(attached);
  return changed || started;
}

std::string Engine::said_of(const TransferDone& done) const {
  return done.staged && done.code != Errc::kOk ? stager_->explain(done.failed) : "";
}

bool Engine::take_completions() {
  if (mover_.in_flight() == 0) return false;
  std::array<TransferDone, 64> done;
  const std::size_t count = mover_.poll(done);
  bool tickets = false;
  for (std::size_t i = 0; i < count; ++i) {
    if (done[i].code == Errc::kDeadline || done[i].code == Errc::kUnavailable) {
      report_unresponsive(done[i].node);
    }
    if (done[i].owner == 0) {
      Ticket& ticket = tickets_[done[i].cookie];
      ticket.code = done[i].code;
      ticket.node = done[i].node;
      ticket.said = said_of(done[i]);
      ticket.state.store(TicketState::kDone);
      tickets = true;
      continue;
    }
    const auto at = std::find_if(links_.begin(), links_.end(), [&](const Attached& attached) {
      return attached.owner == done[i].owner;
    });
    HO_CHECK(at != links_.end());
    Replay& replay = at->link->replay;
    replay.transfer_done(done[i], ticks_.now());
    if (done[i].code != Errc::kOk && replay.failure()->node == done[i].node) {
      const std::string label = nodes_[done[i].node.value()].label;
      fail(*at,
           "transfer of " + names_of(*at->link, replay.failure()->storages) + " with " + label +
               " failed: " + std::string(errc_name(done[i].code)) +
               (said_of(done[i]).empty() ? "" : " (" + said_of(done[i]) + ")"),
           done[i].node);
    }
    publish(*at);
  }
  if (tickets) ticket_done_.ring();
  return count > 0;
}

/// A driver between nodes closes a peer at the first operation that ends by its deadline, for good:
/// the node is lost to this job, which must not be given memory there again. One that works on
/// descriptors of this node's (local) loses the operation only.
void Engine::report_unresponsive(NodeIndex node) {
  const EngineNode& lost = nodes_[node.value()];
  if (transport(lost.driver).caps().needs_descriptor) return;
  lost.fault->report(FaultReason::kUnresponsive);
}

void Engine::publish(Attached& attached) {
  Link& link = *attached.link;
  if (link.state.load() == LinkState::kFailed) return;
  const Executor& executor = link.replay.executor();
  link.prefetched_bytes.store(link.replay.prefetched_bytes(), std::memory_order_relaxed);
  link.stored_bytes.store(link.replay.stored_bytes(), std::memory_order_relaxed);
  link.staged_in_bytes.store(link.replay.staged_in_bytes(), std::memory_order_relaxed);
  link.staged_out_bytes.store(link.replay.staged_out_bytes(), std::memory_order_relaxed);
  link.device_end_bytes.store(link.replay.device_end_bytes(), std::memory_order_relaxed);
  link.retired_steps.store(executor.retired_steps());
  link.ready_through.store(executor.ready_through());
  if (executor.state() == Executor::State::kFinished) link.state.store(LinkState::kFinished);
  link.changed.ring();
}

/// The first reason stays; a failed link stays failed.
void Engine::fail(Attached& attached, const std::string& what, NodeIndex node) {
  Link& link = *attached.link;
  if (link.state.load() == LinkState::kFailed) return;
  link.replay.fail(Errc::kUnavailable, node);
  link.failure_text = what;
  if (node.value() < link.storages_by_node.size() && !link.storages_by_node[node.value()].empty()) {
    link.failure_text +=
        "; tensors at home there: " + names_of(link, link.storages_by_node[node.value()]);
  }
  link.state.store(LinkState::kFailed);
  link.ready_through.store(0);
  link.wake_at.store(0);
  link.changed.ring();
}

/// Tells the jobs at which op's end this thread wants to be woken, or that it is awake. A failed
/// link's word stays at 0, which sends its job off the fast path.
void Engine::announce_wakes(Awake awake) {
  for (Attached& attached : links_) {
    Link& link = *attached.link;
    if (link.state.load() == LinkState::kFailed) continue;
    link.wake_at.store(awake == Awake::kNo ? link.replay.executor().next_trigger() : kNeverNeeded);
  }
}

/// A legal schedule cannot be stuck; saying so is better than hanging.
void Engine::fail_stuck_links() {
  for (Attached& attached : links_) {
    if (!stuck(*attached.link)) continue;
    fail(attached,
         "the schedule cannot go on at position " + std::to_string(attached.link->ops_done.load()),
         NodeIndex(UINT32_MAX));
  }
}

}  // namespace ho::client
