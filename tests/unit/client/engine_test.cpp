#include "client/transfer/engine.hpp"
#include "client/replay/loaded_schedule.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/schedule_builder.hpp"
#include "tests/support/sim_transport.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using B = test::ScheduleBuilder;
using client::ArenaExtent;
using client::ArenaMap;
using client::Direction;
using client::DriverIndex;
using client::Engine;

using client::LoadedState;
using client::LocalHandles;
using client::NodeIndex;
using client::Transfer;

constexpr std::uint64_t kHomeBytes = 4096;

/// A transfer thread over one simulated node that keeps real time, with pool and host memory.
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
      engine_->set_nodes({{"node 0", DriverIndex(0), peer_, fault_}});
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

/// A loaded schedule and the job that runs it, as Runtime does.
class Job {
 public:
  Job(Rig& rig, const schedule::Schedule& schedule, std::vector<std::byte>& home,
      std::vector<std::byte>& device)
      : engine_(rig.engine()), map_(rig.expose(home)) {
    const client::ReplayMemory memory{device, rig.add(device), &map_, &map_};
    const std::uint32_t owner = engine_.call([&] { return engine_.reserve_owner(); });
    client::LoadedSchedule::Names names;
    names.storages_by_node.resize(1);
    loaded_ =
        std::make_unique<client::LoadedSchedule>(*client::Replay::create(schedule, memory, owner),
                                                 schedule.positions.size(), std::move(names));
    engine_.call([&] { engine_.attach(loaded_.get(), owner); });
  }
  ~Job() {
    while (!engine_.call([&] { return engine_.detach(loaded_.get()); })) {
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] client::LoadedSchedule& loaded() { return *loaded_; }

  /// One step with `kernel(position)` at each op. @return false: the schedule failed.
  template <typename Kernel>
  [[nodiscard]] bool step(const Kernel& kernel) {
    const std::uint64_t first = loaded_->steps_begun.load() * loaded_->position_count;
    loaded_->steps_begun.fetch_add(1);
    engine_.ring();
    for (std::uint64_t p = 0; p < loaded_->position_count; ++p) {
      while (loaded_->ready_through.load() <= first + p) {
        if (loaded_->state.load() == LoadedState::kFailed) return false;
        const std::uint32_t token = loaded_->changed.token();
        loaded_->waiting.store(true);
        engine_.ring();
        if (loaded_->ready_through.load() <= first + p) loaded_->changed.wait(token, 10ms);
        loaded_->waiting.store(false);
      }
      kernel(p);
      loaded_->ops_done.store(first + p + 1);
      if (first + p + 1 >= loaded_->wake_at.load()) engine_.ring();
    }
    return true;
  }
  [[nodiscard]] bool finish() {
    loaded_->finish_asked.store(true);
    engine_.ring();
    while (loaded_->state.load() == LoadedState::kRunning) {
      const std::uint32_t token = loaded_->changed.token();
      if (loaded_->state.load() == LoadedState::kRunning) loaded_->changed.wait(token, 10ms);
    }
    return loaded_->state.load() == LoadedState::kFinished;
  }

 private:
  Engine& engine_;
  ArenaMap map_;
  std::unique_ptr<client::LoadedSchedule> loaded_;
};

/// One op updates a weight that stays on the device and is stored after each step, before the next
/// one updates it again. What comes after the last op is the transfer thread's to find out.
schedule::Schedule stored_each_step() {
  B b;
  const auto w = b.storage("w", 64, B::kWeight, 0);
  b.op({B::update(w, 0)});
  b.store(w, 0, {.after = 0, .before = 0, .next_step = true});
  b.prologue(w, 0, {.before = 0});
  return b.finish();
}

/// Two ops read and update one weight that is thrown out after each step.
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

/// A job that does its next act (begin a step of one op, end the op, ask for the end) whenever one
/// of its words is about to be read: the worst timing there can be.
struct RestlessJob {
  struct Word {
    RestlessJob* job;
    std::uint64_t value = 0;
    [[nodiscard]] std::uint64_t load() const {
      for (int i = 0; i < job->acts_per_read; ++i) job->act();
      return value;
    }
  };
  void act() {
    if (finish_asked.value != 0) return;
    if (steps_begun.value > ops_done.value) {
      ops_done.value += 1;
    } else if (steps_begun.value < 2) {
      steps_begun.value += 1;
    } else {
      finish_asked.value = 1;
    }
  }
  int acts_per_read = 1;
  Word ops_done{this};
  Word steps_begun{this};
  Word finish_asked{this};
};

}  // namespace

TEST_CASE("engine: whoever sees the end of the run sees its last step") {
  for (int start = 0; start < 6; ++start) {
    for (int acts = 1; acts < 6; ++acts) {
      RestlessJob job;
      for (int i = 0; i < start; ++i) job.act();
      job.acts_per_read = acts;
      const auto seen = client::job_progress(job);
      INFO("start " << start << ", " << acts << " acts a read");
      CHECK((!seen.finish || (seen.begun == 2 && seen.ended == 2)));
    }
  }
}

TEST_CASE("engine: what the last step stores is at home after finish") {
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
    INFO("round " << round << ": " << job.loaded().failure_text);
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
  const auto schedule = fetched_each_step();
  const client::ReplayMemory memory{device, {}, &map, &map};
  client::LoadedSchedule loaded(*client::Replay::create(schedule, memory, 1),
                                schedule.positions.size(), {});
  CHECK_FALSE(client::stuck(loaded));
  loaded.steps_begun.store(1);
  loaded.waiting.store(true);
  CHECK_FALSE(client::stuck(loaded));
  REQUIRE(loaded.replay.executor().begin_step().ok());
  CHECK_FALSE(client::stuck(loaded));  // the prefetch can start
  REQUIRE(loaded.replay.executor().next().has_value());
  CHECK(client::stuck(loaded));  // nobody has started it and nothing else can: the job hangs
  loaded.waiting.store(false);
  CHECK_FALSE(client::stuck(loaded));
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

TEST_CASE("engine: detaching moves nothing of what is queued") {
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
    job.loaded().steps_begun.store(1);
    rig.engine().ring();
    while (rig.engine().call([&] { return job.loaded().replay.in_flight(); }) == 0) {
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
