#include "client/transfer/engine.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/system/signals.hpp"

namespace ho::client {
namespace {

// A ticket's number: 1 + its place from bit 0 on, then the engine's number, so that another pool's
// ticket is not taken for one's own, then how often the place was used before.
constexpr unsigned kEngineShift = 13;
constexpr unsigned kUsesShift = 32;
static_assert(Engine::kTicketsMax < 1U << kEngineShift);

std::uint64_t engine_of(std::uint64_t ticket) { return (ticket & UINT32_MAX) >> kEngineShift; }

/// From 1 on: no engine's ticket is a small number, as those of blocks are.
std::uint64_t next_engine() {
  static std::atomic<std::uint64_t> engines{0};
  return 1 + engines.fetch_add(1) % ((1U << (kUsesShift - kEngineShift)) - 1);
}

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
      number_(next_engine()),
      tickets_(kTicketsMax),
      commands_(kCommandsMax),
      drivers_(std::move(drivers)),
      mover_(ports_of(drivers_), clock_) {
  for (std::uint32_t i = 0; i < kTicketsMax; ++i) {
    tickets_[i].number.store((number_ << kEngineShift) | (i + 1));
  }
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

/// Waits while the queue is full. The thread takes commands at every turn; if the mover is full,
/// they wait for a transfer to end, at the latest by its deadline.
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
    return ticket.number.load();
  }
  return Error(Errc::kBusy, "more than " + std::to_string(kTicketsMax) +
                                " transfers are started and not waited for");
}

const Engine::Ticket* Engine::find(std::uint64_t ticket) const {
  const std::uint64_t index = (ticket & ((1U << kEngineShift) - 1)) - 1;
  if (index >= kTicketsMax) return nullptr;
  const Ticket& found = tickets_[index];
  const TicketState state = found.state.load();
  const bool live = state == TicketState::kPending || state == TicketState::kDone;
  return live && found.number.load() == ticket ? &found : nullptr;
}

Engine::Ticket* Engine::find(std::uint64_t ticket) {
  return const_cast<Ticket*>(static_cast<const Engine*>(this)->find(ticket));
}

Error Engine::not_found(std::uint64_t ticket) const {
  if (engine_of(ticket) != number_) {
    return {Errc::kInvalidArgument, "the ticket is not one of this pool"};
  }
  return {Errc::kNotFound, "no such ticket: it was waited for before"};
}

Result<bool> Engine::test(std::uint64_t ticket) const {
  const Ticket* const found = find(ticket);
  if (found == nullptr) return not_found(ticket);
  return found->state.load(std::memory_order_acquire) == TicketState::kDone;
}

Result<void> Engine::wait(std::uint64_t ticket) {
  Ticket* const found = find(ticket);
  if (found == nullptr) return not_found(ticket);
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
  found->number.fetch_add(std::uint64_t{1} << kUsesShift);
  found->state.store(TicketState::kFree);
  if (code == Errc::kOk) return {};
  // Its node is there; a transfer cannot have run before.
  if (node.value() >= nodes_.size()) return Error(code, "transfer to or from a node failed");
  const EngineNode& there = nodes_[node.value()];
  std::string why = said.empty() ? there.fault->words() : said;
  if (why.empty() && code == Errc::kPermissionDenied) why = kTakenBack;
  return Error(code,
               "transfer to or from " + there.label + " failed" + (why.empty() ? "" : ": " + why));
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

void Engine::add_node(EngineNode node) {
  mover_.add_lease(node.fault);
  node_closed_.push_back(0);
  node_late_.push_back(0);
  for (const Attached& one : attached_) one.source->add_node(node.label);
  nodes_.push_back(std::move(node));
  seen_faults_ = 0;
}

void Engine::hold(NodeIndex node) {
  const EngineNode& held = nodes_[node.value()];
  if (transport(held.driver).caps().needs_descriptor) {
    return mover_.hold(node, Mover::Held::kStages);
  }
  mover_.hold(node, Mover::Held::kAll);
  transport(held.driver).close_peer(held.peer);
}

bool Engine::quiet(NodeIndex node) const {
  const auto driver = nodes_[node.value()].driver.value();
  return drivers_[driver].transport->caps().needs_descriptor || mover_.quiet(node);
}

void Engine::resume(NodeIndex node, transport::PeerId peer) {
  nodes_[node.value()].peer = peer;
  mover_.resume(node);
}

void Engine::set_link(double bytes_per_s) { mover_.set_link(bytes_per_s); }

void Engine::set_stager(std::unique_ptr<Stager> stager, Duration op_deadline) {
  HO_CHECK(stager_ == nullptr);
  stager_ = std::move(stager);
  StagePort port;
  port.stager = stager_.get();
  port.op_deadline = op_deadline;
  mover_.set_stager(port);
}

std::uint32_t Engine::reserve_owner() { return next_owner_++; }

void Engine::attach(TransferSource* source, std::uint32_t owner) {
  attached_.push_back({source, owner});
  for (const EngineNode& node : nodes_) source->add_node(node.label);
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (node_closed_[i] != 0 && source->uses(NodeIndex(i))) {
      source->fail(nodes_[i].label + " was lost before", NodeIndex(i));
    }
  }
}

bool Engine::detach(TransferSource* source) {
  const auto at = std::find_if(attached_.begin(), attached_.end(),
                               [&](const Attached& one) { return one.source == source; });
  HO_CHECK(at != attached_.end());
  // Nothing new is sent; what is in flight ends by its deadline.
  if (!source->cancel(mover_)) return false;
  attached_.erase(at);
  return true;
}

void Engine::run() {
  TimePoint last_event = clock_.now();
  while (!stopping_) {
    if (turn()) {
      last_event = clock_.now();
      continue;
    }
    const Duration quiet = clock_.now() - last_event;
    if (mover_.busy() || mover_.devices().moves()) {
      if (const auto due = mover_.paced_until()) {
        nap(std::max(*due - clock_.now(), Duration::zero()));
      } else if (quiet > kSpin && mover_.waits_for_stager_only()) {
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
      for (const Attached& one : attached_) one.source->fail_if_stuck();
      door_->bell.wait(token, Duration(-1));
    }
    announce_wakes(Awake::kYes);
  }
  HO_CHECK(attached_.empty());
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
  for (const Attached& one : attached_) busy |= one.source->feed(mover_, ticks_);
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
    if (nodes_[i].fault->reason() == FaultReason::kNone || node_closed_[i] != 0) continue;
    const std::string why = nodes_[i].fault->words();
    node_closed_[i] = 1;
    transport(nodes_[i].driver).close_peer(nodes_[i].peer);
    mover_.lose(NodeIndex(i));
    mover_.devices().lose(NodeIndex(i));
    log(LogLevel::kWarning, "a node is lost to this job",
        {{"node", nodes_[i].label}, {"why", why}});
    for (const Attached& one : attached_) {
      if (!one.source->uses(NodeIndex(i))) continue;
      one.source->fail("lost " + nodes_[i].label + ": " + why, NodeIndex(i));
    }
  }
  return true;
}

std::string Engine::said_of(const TransferDone& done) const {
  if (done.code == Errc::kOk) return "";
  if (done.staged) return stager_->explain(done.failed);
  const auto failure = done.streams != nullptr ? done.streams->failure() : std::nullopt;
  return failure ? failure->context() : "";
}

bool Engine::take_completions() {
  const bool device_news = mover_.devices().poll_devices();
  if (!mover_.busy()) return device_news;
  std::array<TransferDone, 64> done;
  const std::size_t count = mover_.poll(done);
  bool tickets = false;
  for (std::size_t i = 0; i < count; ++i) {
    if (done[i].late) say_late(done[i].node);
    const bool unanswered = done[i].code == Errc::kDeadline || done[i].code == Errc::kUnavailable;
    if (unanswered && !done[i].staged && !done[i].yielded) report_unresponsive(done[i].node);
    if (done[i].owner == 0) {
      Ticket& ticket = tickets_[done[i].cookie];
      ticket.code = done[i].code;
      ticket.node = done[i].node;
      ticket.said = said_of(done[i]);
      ticket.state.store(TicketState::kDone);
      tickets = true;
      continue;
    }
    const auto at = std::find_if(attached_.begin(), attached_.end(),
                                 [&](const Attached& one) { return one.owner == done[i].owner; });
    HO_CHECK(at != attached_.end());
    NodeWords words;
    if (done[i].code != Errc::kOk && done[i].code != Errc::kCanceled) {
      words = {nodes_[done[i].node.value()].label, said_of(done[i])};
    }
    at->source->transfer_done(mover_, done[i], words, ticks_.now());
  }
  if (tickets) ticket_done_.ring();
  while (const auto node = mover_.take_unanswered()) report_unresponsive(*node);
  say_in_time();
  return count > 0 || device_news;
}

/// A driver between nodes closes a peer at the first operation that ends by its deadline, for good:
/// the node is lost to this job, which must not be given memory there again. A driver that works on
/// descriptors of this machine (local) loses only the operation. A stage does not use the driver: a
/// late one means that a disk is slow, and says nothing about the path to the node's DDR.
void Engine::report_unresponsive(NodeIndex node) {
  const EngineNode& lost = nodes_[node.value()];
  if (transport(lost.driver).caps().needs_descriptor) return;
  lost.fault->report(lost.fault->reason_unanswered(clock_.now()));
}

void Engine::say_late(NodeIndex node) {
  if (std::exchange(node_late_[node.value()], 1) != 0) return;
  late_nodes_ += 1;
  log(LogLevel::kWarning, "a node does not answer: steps use the other homes of its values",
      {{"node", nodes_[node.value()].label}});
}

void Engine::say_in_time() {
  for (std::uint32_t i = 0; late_nodes_ > 0 && i < nodes_.size(); ++i) {
    if (node_late_[i] == 0 || mover_.is_late(NodeIndex(i))) continue;
    node_late_[i] = 0;
    late_nodes_ -= 1;
    if (node_closed_[i] != 0 || mover_.is_lost(NodeIndex(i))) continue;
    log(LogLevel::kInfo, "a late node is used again", {{"node", nodes_[i].label}});
  }
}

/// Tells the jobs at which op's end this thread wants to be woken, or that it is awake.
void Engine::announce_wakes(Awake awake) {
  for (const Attached& one : attached_) one.source->announce_wake(awake);
}

}  // namespace ho::client
