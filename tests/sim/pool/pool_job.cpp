// A simulated job: its life, its threads, and the transfer thread.
#include "tests/sim/pool/pool_job.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.hpp"
#include "tests/sim/pool/job_plans.hpp"

namespace ho::test {
namespace {

using std::chrono::milliseconds;

/// As the client's default. Longer than most stops of a daemon.
constexpr Duration kOpDeadline = milliseconds(1500);
constexpr Duration kLateLook = milliseconds(2);
constexpr Duration kIdleLook = milliseconds(20);
constexpr std::uint64_t kBounceBytes = 64 * 1024;
constexpr std::uint32_t kOwner = 1;

SimLink random_link(Prng& random) {
  SimLink link;
  link.delay_max = Duration(20'000 + static_cast<std::int64_t>(random.below(1'000'000)));
  link.depth_ops_max = static_cast<std::uint32_t>(6 + random.below(10));
  if (random.below(2) == 0) link.bytes_per_s = 100'000'000 + random.below(1'000'000'000);
  link.linger_max = milliseconds(200);
  return link;
}

SimFlaw flaw_of(const SimWorld& world) {
  if (world.planted(Planted::kPutDoneEarly)) return SimFlaw::kPutDoneEarly;
  if (world.planted(Planted::kGetDoneEarly)) return SimFlaw::kGetDoneEarly;
  if (world.planted(Planted::kGivenBackGetWrites)) return SimFlaw::kGivenBackGetWrites;
  if (world.planted(Planted::kGivenBackEndsEarly)) return SimFlaw::kGivenBackEndsEarly;
  return SimFlaw::kNone;
}

}  // namespace

PoolJob::PoolJob(SimWorld& world, std::uint32_t number)
    : world_(world), number_(number), random_(world.random().next()) {
  doubled_ = !world.options().restarts_only && random_.below(4) != 0;
  plan_ = &job_plan(random_.below(world.options().plans), doubled_ ? 2 : 1);
  schedule_ = *plan_;
  paused_until_disturbed_ = world_.now() - std::chrono::hours(1);
  transport_ = std::make_unique<JobTransport>(world_.fabric(), world_.clock(), random_link(random_),
                                              random_.next());
  transport_->set_flaw(flaw_of(world_));
  transport_->lease_end = [this](transport::RegionId region) {
    const auto node = region_nodes_.find(region);
    return node != region_nodes_.end() ? nodes_[node->second.value()].lease_end : TimePoint::max();
  };
  transport_->outlives = [this] { wrong("an operation may outlive the lease on its memory"); };
  client::DriverPort port;
  port.transport = transport_.get();
  port.piece_bytes = 2048 + random_.below(9000);
  port.pieces_max = static_cast<std::uint32_t>(1 + random_.below(12));
  port.small_pieces_max = static_cast<std::uint32_t>(1 + random_.below(12));
  port.op_deadline = kOpDeadline;
  mover_.emplace(std::vector<client::DriverPort>{port}, world_.clock());
  arena_.resize(std::max<std::uint64_t>(schedule_.arena_bytes, 64));
  bounce_.resize(kBounceBytes);
  object_bytes_.resize(kObjectBytes);
  arena_handles_ = *mover_->register_memory(arena_);
  bounce_handles_ = *mover_->register_memory(bounce_);
  object_handles_ = *mover_->register_memory(object_bytes_);
  // Jobs begin one after the other.
  const TimePoint begin = world_.now() + world_.any(Duration{0}, milliseconds(300));
  world_.fibers().at(begin, [this] {
    if (!dead_) spawn([this] { main(); });
  });
}

PoolJob::~PoolJob() = default;

Fibers::Fiber* PoolJob::spawn(const std::function<void()>& body) {
  std::erase_if(fibers_, [this](Fibers::Fiber* fiber) { return world_.fibers().ended(fiber); });
  fibers_.push_back(world_.fibers().spawn(body));
  return fibers_.back();
}

void PoolJob::wake_all() {
  for (Fibers::Fiber* const fiber : fibers_) world_.fibers().wake(fiber);
}

/// As each_on_threads().
void PoolJob::at_once(std::size_t count, const std::function<void(std::size_t)>& act) {
  if (count == 1) return act(0);
  const auto left = std::make_shared<std::size_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    spawn([this, act, left, i] {
      act(i);
      *left -= 1;
      if (*left == 0) wake_all();
    });
  }
  world_.fibers().wait_until([&] { return *left == 0; }, TimePoint::max());
}

void PoolJob::main() {
  spawn([this] { renew(); });
  spawn([this] { look_for_lost(); });
  if (connect()) {
    work();
  } else {
    fail("no node of the pool is in reach");
  }
  closing_ = true;
  if (failed_) world_.counts().failed_jobs += 1;
  if (!failed_) world_.counts().finished_jobs += 1;
  world_.trace(failed_ ? "failed" : "finished", number_, steps_);
  if (world_.planted(Planted::kSessionsNotClosed)) {
    over_ = true;
    closing_ = false;
    return;  // its other threads go on
  }
  world_.fibers().wait_until(
      [this] { return !renewing_ && (objects_ == nullptr || world_.fibers().ended(objects_)); },
      TimePoint::max());
  close_sessions();
  over_ = true;
  dead_ = true;
  const auto fibers = fibers_;
  world_.fibers().at(world_.now(), [this, fibers] {
    for (Fibers::Fiber* const fiber : fibers) world_.fibers().end(fiber);
  });
}

void PoolJob::work() {
  if (const auto allocated = allocate(); !allocated) {
    fail("no memory: " + allocated.error().message());
    return;
  }
  client::ReplayMemory memory;
  std::vector<client::StorageHome> homes;
  for (const Held& held : held_) homes.push_back(held.home);
  memory.arena = arena_;
  memory.arena_handles = arena_handles_;
  memory.homes = homes;
  const client::HomeArea none;
  memory.staging = shared_ != nullptr ? &shared_->area : &none;
  auto replay = client::Replay::create(schedule_, memory, kOwner);
  HO_CHECK(replay.ok());
  replay_.emplace(std::move(replay).value());
  for (Held& held : held_) {
    if (!held.persistent) continue;
    held.version = 1;
    if (!write(held)) {
      fail("a value cannot be written");
      return;
    }
  }
  check_two_domains();
  const std::uint64_t role = random_.below(4);
  if (role == 0) objects_ = spawn([this] { publish_objects(); });
  if (role == 1) objects_ = spawn([this] { read_objects(); });
  // Some jobs end while faults go on.
  const bool ends = random_.below(3) == 0;
  const TimePoint end = ends ? world_.now() + world_.any(milliseconds(200), std::chrono::seconds(5))
                             : TimePoint::max();
  while (!world_.closing() && !world_.is_wrong() && world_.now() < end) {
    if (failed_ || !step()) return;
    world_.fibers().sleep(world_.any(Duration{1'000}, milliseconds(240)));
  }
  if (running_ && !end_run()) return;
  check_homes();
}

/// The job has failed. It may do so only where faults took more from it than was promised.
bool PoolJob::fail(const std::string& why) {
  if (failed_) return false;
  std::string words = why;
  const bool replay_failed = replay_ && replay_->failure();
  if (replay_failed) {
    const client::ReplayFailure& failure = *replay_->failure();
    words =
        "a transfer failed: " + std::string(errc_name(failure.code)) + " n" +
        std::to_string(failure.node.value() < nodes_.size() ? nodes_[failure.node.value()].machine
                                                            : UINT32_MAX);
    const bool expected = failure.code == Errc::kUnavailable || failure.code == Errc::kDeadline ||
                          failure.code == Errc::kPermissionDenied;
    if (!expected) wrong("it failed with " + words);
  }
  failed_ = words;
  world_.trace("fails: " + words, number_);
  constexpr Duration kExplains = std::chrono::seconds(8);
  const bool was_paused = world_.now() - paused_until_disturbed_ < kExplains;
  const std::uint32_t nodes = world_.disturbed_nodes(number_, kExplains);
  const std::uint32_t enough = doubled_ && replay_ ? 2 : 1;
  // A job that begins may find too few nodes: others are drained, or nobody knows them.
  bool few = world_.counts().book_faults > 0;
  for (std::uint32_t i = 0; i < world_.nodes(); ++i) few |= world_.machine(i).drained;
  const bool lost =
      std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.lost(); });
  if (replay_ && !lost && !was_paused)
    wrong("it failed (" + words + ") although it has lost no node");
  if (!was_paused && nodes < enough && (replay_ || !few)) {
    wrong("it failed (" + words + ") although " + std::to_string(nodes) + " nodes had faults");
  }
  return false;
}

void PoolJob::wrong(const std::string& what) { world_.wrong(name() + ": " + what); }

std::uint64_t PoolJob::ticks() const {
  return static_cast<std::uint64_t>(world_.now().time_since_epoch().count());
}

/// Lets the transfer thread look at that time, or before.
void PoolJob::kick(TimePoint time) {
  if (dead_ || (next_turn_ && *next_turn_ <= time)) return;
  next_turn_ = time;
  const std::uint64_t turn_number = ++turns_;
  world_.fibers().at(time, [this, turn_number] {
    if (turn_number != turns_ || dead_) return;
    next_turn_.reset();
    turn();
  });
}

/// As Engine::turn(), until nothing happens any more.
void PoolJob::turn() {
  if (paused_) {
    // Bytes on their way arrive without the process.
    turn_waits_ = true;
    transport_->poll({});
    if (transport_->in_flight() > 0) kick(world_.now() + kLateLook);
    return;
  }
  bool any = false;
  for (bool busy = true; busy;) {
    busy = false;
    check_faults();
    if (replay_) busy = replay_->pump(*mover_, ticks()) > 0;
    busy = mover_->pump(ticks()) > 0 || busy;
    std::array<client::TransferDone, 16> ended;
    const std::size_t count = mover_->poll(ended);
    for (std::size_t i = 0; i < count; ++i) done(ended[i]);
    while (const auto node = mover_->take_unanswered()) report_unresponsive(*node);
    busy = busy || count > 0;
    any = any || busy;
  }
  if (any) wake_all();
  if (transport_->in_flight() > 1) world_.bad_moment();
  const bool late = transport_->lingering() > 0;
  if (!mover_->busy() && !late) return;
  const TimePoint look = world_.now() + (transport_->in_flight() > 0 ? kLateLook : kIdleLook);
  kick(std::max(std::min(transport_->next_event().value_or(look), look),
                world_.now() + Duration{1000}));
}

void PoolJob::done(const client::TransferDone& done) {
  const bool unanswered = done.code == Errc::kDeadline || done.code == Errc::kUnavailable;
  if (unanswered && !done.yielded) report_unresponsive(done.node);
  const auto ticket = tickets_.find(done.cookie);
  const bool plain = done.owner == 0 && ticket != tickets_.end();
  if (done.code == Errc::kPermissionDenied && !(plain && ticket->second.foreign)) {
    const Node& node = nodes_[done.node.value()];
    const SimMachine& there = world_.machine(node.machine);
    const bool may = !node.lost() && !node.control->closed && there.process != nullptr &&
                     there.process->instance() == node.instance &&
                     there.truth.contains(node.session.id);
    if (may) wrong("n" + std::to_string(node.machine) + " refuses a transfer of its session");
  }
  if (done.owner == 0) {
    if (plain) ticket->second = {true, done.code, false};
    return;
  }
  replay_->transfer_done(*mover_, done, ticks());
}

/// As Engine::report_unresponsive().
void PoolJob::report_unresponsive(NodeIndex index) {
  Node& node = nodes_[index.value()];
  node.fault->report(node.fault->reason_unanswered(world_.now()));
  kick(world_.now());
}

/// As ActiveReplay::uses(): whether a value has its only home there.
bool PoolJob::uses(NodeIndex node) const {
  return std::any_of(held_.begin(), held_.end(), [&](const Held& held) {
    if (held.home.area == nullptr || held.home.doubled()) return false;
    const auto extents = held.home.area->map->extents();
    return std::any_of(extents.begin(), extents.end(),
                       [&](const auto& extent) { return extent.node == node; });
  });
}

/// As Engine::check_faults().
void PoolJob::check_faults() {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (!node.lost() || node.closed) continue;
    node.closed = true;
    check_loss(NodeIndex(i));
    transport_->close_peer(node.peer);
    mover_->lose(NodeIndex(i));
    if (replay_ && uses(NodeIndex(i))) replay_->fail(Errc::kUnavailable, NodeIndex(i));
    wake_all();
  }
}

std::optional<std::uint32_t> PoolJob::busy_node() const {
  for (std::uint32_t i = 0; i < nodes_.size() && !dead_; ++i) {
    if (!nodes_[i].lost() && !mover_->quiet(NodeIndex(i))) return nodes_[i].machine;
  }
  return std::nullopt;
}

void PoolJob::kill() {
  if (dead_ || over_) return;
  world_.trace("job killed", number_);
  dead_ = over_ = true;
  for (Fibers::Fiber* const fiber : fibers_) world_.fibers().end(fiber);
  fibers_.clear();
}

void PoolJob::pause() {
  if (dead_ || paused_) return;
  world_.trace("job paused", number_);
  paused_ = true;
  for (Fibers::Fiber* const fiber : fibers_) world_.fibers().pause(fiber);
}

void PoolJob::go_on() {
  if (dead_ || !paused_) return;
  world_.trace("job goes on", number_);
  paused_ = false;
  paused_until_disturbed_ = world_.now();
  for (Fibers::Fiber* const fiber : fibers_) world_.fibers().go_on(fiber);
  if (std::exchange(turn_waits_, false)) kick(world_.now());
}

void PoolJob::check_healed() {
  if (over_ || failed_ || !replay_) return;
  for (const Node& node : nodes_) {
    if (node.lost() || node.lease_end > world_.now()) continue;
    wrong("the session on n" + std::to_string(node.machine) + " is not renewed");
  }
  if (!doubled_) return;
  client::HomePool pool = home_pool();
  pool.is_drained = [this](NodeIndex node) { return nodes_[node.value()].drained; };
  for (const Held& held : held_) {
    if (!held.nodes) continue;
    if (const auto leaving = client::leaving_home(pool, *held.nodes)) {
      // No repair brings back what both nodes had.
      const auto repair = client::plan_home_repair(held.place, *leaving);
      if (leaving->both && (held.input || repair.how == client::HomeRepair::How::kLost)) continue;
      wrong("storage " + std::to_string(held.number) + " has a home on a " +
            (leaving->lost ? "lost" : "drained") + " node, long after all faults");
    }
  }
}

}  // namespace ho::test
