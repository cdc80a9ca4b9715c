#include "client/transfer/engine.hpp"
#include "client/replay/active_replay.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/schedule_builder.hpp"
#include "tests/support/sim_transport.hpp"
#include "tests/unit/client/plain_homes.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using B = test::ScheduleBuilder;
using client::ArenaExtent;
using client::ArenaMap;
using client::Direction;
using client::DriverIndex;
using client::Engine;

using client::ActiveReplay;
using client::HomeArea;
using client::LocalHandles;
using client::NodeIndex;
using client::Replay;
using client::RunState;
using client::Transfer;

constexpr std::uint64_t kHomeBytes = 4096;

/// A transfer thread over one simulated node, with memory of pool and host. Time is real.
class Rig {
 public:
  explicit Rig(const test::SimLink& link = {}) {
    fabric_.add_peer("a");
    std::vector<Engine::Driver> drivers(1);
    auto transport = std::make_unique<test::SimTransport>(fabric_, clock_, link, 7);
    drivers[0].transport = std::move(transport);
    drivers[0].port.piece_bytes = 512;
    drivers[0].port.op_deadline = 1500ms;
    auto door = std::make_shared<client::Doorbell>();
    fault_ = std::make_shared<client::NodeFault>(door);
    engine_.emplace(std::move(drivers), door);
    engine_->call([&] {
      auto& driver = engine_->transport(DriverIndex(0));
      peer_ = *driver.connect({NodeId(0), "a"}, clock_.now() + 1s);
      engine_->add_node({"node 0", DriverIndex(0), peer_, fault_});
    });
  }

  [[nodiscard]] Engine& engine() { return *engine_; }
  [[nodiscard]] client::FaultReason fault() const { return fault_->reason(); }
  [[nodiscard]] ArenaMap expose(std::vector<std::byte>& memory) {
    return engine_->call([&] {
      auto grant = fabric_.expose("a", memory, transport::Rights::kReadWrite);
      const auto region = *engine_->transport(DriverIndex(0)).attach(peer_, std::move(grant));
      return ArenaMap(
          std::vector<ArenaExtent>{{0, memory.size(), DriverIndex(0), NodeIndex(0), region, 0}});
    });
  }
  [[nodiscard]] LocalHandles add(std::span<std::byte> memory) {
    LocalHandles handles;
    handles[0] =
        *engine_->call([&] { return engine_->transport(DriverIndex(0)).register_memory(memory); });
    return handles;
  }

 private:
  SteadyClock clock_;
  test::SimFabric fabric_;
  transport::PeerId peer_;
  std::shared_ptr<client::NodeFault> fault_;
  std::optional<Engine> engine_;
};

/// A node whose disk answers no request in time.
class LateStager : public client::Stager {
 public:
  [[nodiscard]] std::uint64_t op_bytes_max() const override { return 4096; }
  [[nodiscard]] Result<void> submit(const client::StageOp& op) override {
    late_.push_back({op.op, Errc::kDeadline, 0});
    return {};
  }
  std::size_t poll(std::span<Completion> out) override {
    if (late_.empty() || out.empty()) return 0;
    out[0] = late_.back();
    late_.pop_back();
    return 1;
  }
  [[nodiscard]] std::string explain(OpId) const override { return "no answer in time"; }

 private:
  std::vector<Completion> late_;
};

/// A plan and the job that runs it, as Runtime and Plan do.
class Job {
 public:
  Job(Rig& rig, const schedule::Schedule& schedule, std::vector<std::byte>& home,
      std::vector<std::byte>& device)
      : engine_(rig.engine()),
        map_(rig.expose(home)),
        area_{&map_, 0, map_.bytes()},
        names_(schedule.storages.size()) {
    const auto homes = client::plain_homes(schedule, area_);
    client::ReplayMemory memory;
    memory.arena = device;
    memory.arena_handles = rig.add(device);
    memory.homes = homes;
    const std::uint32_t owner = engine_.call([&] { return engine_.reserve_owner(); });
    replay_ = std::make_unique<Replay>(*Replay::create(schedule, memory, owner));
    engine_.call([&] {
      engine_.attach(&active_, owner);
      active_.begin_run(*replay_, names_);
    });
  }
  ~Job() {
    while (!engine_.call([&] { return engine_.detach(&active_); })) {
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] ActiveReplay& active() { return active_; }

  /// One step with `kernel(position)` at each op. @return false: the run failed.
  template <typename Kernel>
  [[nodiscard]] bool step(const Kernel& kernel) {
    const std::uint64_t positions = replay_->positions();
    const std::uint64_t first = active_.steps_begun.load() * positions;
    active_.steps_begun.fetch_add(1);
    engine_.ring();
    for (std::uint64_t p = 0; p < positions; ++p) {
      while (active_.ready_through.load() <= first + p) {
        if (active_.state.load() == RunState::kFailed) return false;
        const std::uint32_t token = active_.changed.token();
        active_.waiting.store(true);
        engine_.ring();
        if (active_.ready_through.load() <= first + p) active_.changed.wait(token, 10ms);
        active_.waiting.store(false);
      }
      kernel(p);
      active_.ops_done.store(first + p + 1);
      if (first + p + 1 >= active_.wake_at.load()) engine_.ring();
    }
    return true;
  }
  [[nodiscard]] bool finish() {
    engine_.call([&] { active_.begin_epilogue(engine_.mover(), {}); });
    while (active_.state.load() == RunState::kRunning) {
      const std::uint32_t token = active_.changed.token();
      if (active_.state.load() == RunState::kRunning) active_.changed.wait(token, 10ms);
    }
    return active_.state.load() == RunState::kFinished;
  }

 private:
  Engine& engine_;
  ArenaMap map_;
  HomeArea area_;
  std::vector<std::string> names_;
  std::unique_ptr<Replay> replay_;
  ActiveReplay active_;
};

/// One op updates a weight that stays on the device. Each step stores it after the op, before the
/// next update. Only the transfer thread sees the end of the last store.
schedule::Schedule stored_each_step() {
  B b;
  const auto w = b.storage("w", 64, B::kWeight, 0);
  b.op({B::update(w, 0)});
  b.store(w, 0, {.after = 0, .before = 0, .next_step = true});
  b.prologue(w, 0, {.before = 0});
  return b.finish();
}

/// Two ops read and update one weight that is evicted after each step.
schedule::Schedule fetched_each_step() {
  B b;
  const auto w = b.storage("w", kHomeBytes, B::kWeight, 0);
  b.op({B::read(w, 0)});
  b.op({B::update(w, 0)});
  b.prefetch(w, 0, {.before = 0, .after_cache_ops = {B::previous(2)}});
  b.store(w, 0, {.after = 1});
  b.detach(w, 0, {.after = 1, .after_cache_ops = {B::same(1)}});
  return b.finish();
}

std::vector<std::byte> bytes_of(std::uint64_t value) {
  std::vector<std::byte> made(64);
  std::memcpy(made.data(), &value, sizeof(value));
  return made;
}

}  // namespace

TEST_CASE("engine: the stores of the last step are at home after finish") {
  test::SimLink link;
  link.delay_min = link.delay_max = Duration(0);
  Rig rig(link);
  std::vector<std::byte> home(kHomeBytes), device(kHomeBytes);
  const auto schedule = stored_each_step();
  for (std::uint64_t round = 0; round < 500; ++round) {
    Job job(rig, schedule, home, device);
    bool stepped = job.step([](std::uint64_t) {});
    const auto value = bytes_of(round + 1);
    stepped &=
        job.step([&](std::uint64_t) { std::memcpy(device.data(), value.data(), value.size()); });
    const bool finished = job.finish();
    INFO("round " << round << ": " << job.active().failure_text);
    REQUIRE((stepped && finished));
    REQUIRE(std::memcmp(home.data(), value.data(), value.size()) == 0);
  }
}

TEST_CASE("engine: a job that waits in a step not yet taken is not stuck") {
  test::SimFabric fabric;
  test::SimClock clock;
  test::SimTransport transport(fabric, clock, {}, 7);
  fabric.add_peer("a");
  const auto peer = *transport.connect({NodeId(0), "a"}, clock.now() + 1s);
  std::vector<std::byte> home(kHomeBytes), device(kHomeBytes);
  auto grant = fabric.expose("a", home, transport::Rights::kReadWrite);
  const auto region = *transport.attach(peer, std::move(grant));
  const ArenaMap map(
      std::vector<ArenaExtent>{{0, home.size(), DriverIndex(0), NodeIndex(0), region, 0}});
  client::DriverPort port;
  port.transport = &transport;
  port.op_deadline = 1s;
  client::Mover mover({port}, clock);
  mover.add_lease(std::make_shared<client::NodeFault>(std::make_shared<client::Doorbell>()));
  const auto schedule = fetched_each_step();
  const HomeArea area{&map, 0, map.bytes()};
  const auto homes = client::plain_homes(schedule, area);
  client::ReplayMemory memory;
  memory.arena = device;
  memory.arena_handles = *mover.register_memory(device);
  memory.homes = homes;
  Replay replay = *Replay::create(schedule, memory, 1);
  const std::vector<std::string> names{"w"};
  ActiveReplay active;
  active.begin_run(replay, names);
  CHECK_FALSE(active.stuck());
  active.steps_begun.store(1);
  active.waiting.store(true);
  CHECK_FALSE(active.stuck());  // the replay has not seen the step yet
  CHECK(active.feed(mover, client::TickClock()));
  CHECK_FALSE(active.stuck());  // the prefetch is under way
  mover.cancel(1);              // no transfer and nothing left to start: the job hangs
  client::TransferDone done[1];
  REQUIRE(mover.poll(done) == 1);
  CHECK(active.stop(mover) == false);
  replay.transfer_done(mover, done[0], 1);
  CHECK(active.stuck());
  active.waiting.store(false);
  CHECK_FALSE(active.stuck());
}

TEST_CASE("engine: two jobs and plain transfers in three threads get their own bytes") {
  Rig rig;
  const auto schedule = fetched_each_step();
  bool right[2] = {true, true};
  const auto work = [&](int index) {
    std::vector<std::byte> home(kHomeBytes), device(kHomeBytes);
    Job job(rig, schedule, home, device);
    for (int step = 0; step < 200; ++step) {
      const auto before = static_cast<std::byte>(step == 0 ? 0 : step + index);
      const auto after = static_cast<std::byte>(step + 1 + index);
      right[index] &= job.step([&](std::uint64_t position) {
        right[index] &= device.front() == before && device.back() == before;
        if (position == 1) std::memset(device.data(), static_cast<int>(after), device.size());
      });
    }
    right[index] &= job.finish();
    right[index] &= home.front() == static_cast<std::byte>(200 + index);
  };
  std::thread first([&] { work(0); });
  std::thread second([&] { work(1); });
  std::vector<std::byte> pool(kHomeBytes), host(2 * kHomeBytes);
  const ArenaMap map = rig.expose(pool);
  const LocalHandles handles = rig.add(host);
  bool plain = true;
  for (int i = 0; i < 500; ++i) {
    Transfer transfer;
    transfer.arena = &map;
    transfer.bytes = kHomeBytes;
    transfer.local = handles;
    transfer.direction = Direction::kPut;
    transfer.memory = host.data();
    std::memset(host.data(), i, kHomeBytes);
    const auto put = rig.engine().start(transfer);
    plain &= put.ok() && rig.engine().wait(*put).ok();
    transfer.direction = Direction::kGet;
    transfer.memory = host.data() + kHomeBytes;
    const auto get = rig.engine().start(transfer);
    plain &= get.ok() && rig.engine().wait(*get).ok();
    plain &= std::memcmp(host.data(), host.data() + kHomeBytes, kHomeBytes) == 0;
  }
  first.join();
  second.join();
  CHECK(plain);
  CHECK((right[0] && right[1]));
}

TEST_CASE("engine: a stage that is late leaves the way to the node's memory open") {
  Rig rig;
  rig.engine().call([&] { rig.engine().set_stager(std::make_unique<LateStager>(), 10ms); });
  std::vector<std::byte> pool(kHomeBytes), host(kHomeBytes);
  const ArenaMap map = rig.expose(pool);
  Transfer transfer;
  transfer.arena = &map;
  transfer.bytes = kHomeBytes;
  transfer.flash = client::FlashPlace{NodeIndex(0), 1, 0};
  const auto stage = rig.engine().start(transfer);
  REQUIRE(stage.ok());
  const auto late = rig.engine().wait(*stage);
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code() == Errc::kDeadline);
  CHECK(rig.fault() == client::FaultReason::kNone);
  transfer.flash.reset();
  transfer.memory = host.data();
  transfer.local = rig.add(host);
  const auto get = rig.engine().start(transfer);
  REQUIRE(get.ok());
  CHECK(rig.engine().wait(*get).ok());
}

TEST_CASE("engine: detaching sends none of the queued transfers") {
  constexpr std::uint64_t kBytes = std::uint64_t{8} << 20U;
  test::SimLink link;
  link.bytes_per_s = 1'000'000'000;
  Rig rig(link);
  std::vector<std::byte> home(kBytes, std::byte{7}), device(kBytes);
  B b;
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  b.op({B::update(w, 0)});
  b.prologue(w, 0, {.before = 0});
  {
    Job job(rig, b.finish(), home, device);
    job.active().steps_begun.store(1);
    rig.engine().ring();
    while (rig.engine().call([&] { return job.active().replay()->in_flight(); }) == 0) {
    }
  }
  CHECK(device.back() == std::byte{0});
}

TEST_CASE("engine: memory that a transfer still uses is waited for") {
  test::SimLink link;
  link.delay_min = link.delay_max = 20ms;
  Rig rig(link);
  std::vector<std::byte> pool(kHomeBytes), host(kHomeBytes), other(kHomeBytes);
  const ArenaMap map = rig.expose(pool);
  Transfer transfer;
  transfer.arena = &map;
  transfer.memory = host.data();
  transfer.bytes = kHomeBytes;
  transfer.local = rig.add(host);
  const auto ticket = rig.engine().start(transfer);
  REQUIRE(ticket.ok());
  rig.engine().wait_unused(rig.add(other));
  CHECK_FALSE(*rig.engine().test(*ticket));
  rig.engine().wait_unused(transfer.local);
  CHECK(*rig.engine().test(*ticket));
  CHECK(rig.engine().wait(*ticket).ok());
}
