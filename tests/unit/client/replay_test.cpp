#include "client/replay/replay.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
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
using client::DriverIndex;
using client::Mover;
using client::NodeIndex;
using client::Replay;
using client::TransferDone;

/// `count` ops. Each reads a weight that every step fetches for it.
schedule::Schedule weights(int count) {
  B b;
  for (int i = 0; i < count; ++i) {
    const auto offset = static_cast<std::uint64_t>(64 * i);
    const auto w = b.storage("w" + std::to_string(i), 64, B::kWeight, offset);
    b.op({B::read(w, offset)});
    const auto self = static_cast<std::uint32_t>(2 * i);
    b.prefetch(w, offset, {.before = i, .after_cache_ops = {B::previous(self + 1)}});
    b.detach(w, offset, {.after = i, .after_cache_ops = {B::same(self)}});
  }
  return b.finish();
}

/// A step whose op reads a weight of `bytes`, which is on flash and returns for the next step.
schedule::Schedule weight_on_flash(std::uint64_t bytes) {
  B b;
  const auto w = b.storage("w", bytes, B::kWeight, 0);
  b.op({B::read(w, 0)});
  b.detach(w, 0, {.after = 0});
  b.prefetch(w, 0, {.after = 0});  // becomes the StageIn
  b.prefetch(
      w, 0,
      {.after = 0, .before = 0, .next_step = true, .after_cache_ops = {B::same(0), B::same(1)}});
  b.prologue(w, 0, {});  // becomes the StageIn
  b.prologue(w, 0, {.before = 0, .after_cache_ops = {B::same(0)}});
  schedule::Schedule made = b.finish();
  made.homes[0]->tier = schedule::HomeTier::kFlash;
  made.cache_ops[1].kind = schedule::CacheOpKind::kStageIn;
  made.cache_ops[1].ddr_offset_bytes = 0;
  made.cache_ops[2].ddr_offset_bytes = 0;
  made.prologue[0].kind = schedule::CacheOpKind::kStageIn;
  made.prologue[0].ddr_offset_bytes = 0;
  made.prologue[1].ddr_offset_bytes = 0;
  return made;
}

/// Completes each op at the next poll.
class PromptStager : public client::Stager {
 public:
  [[nodiscard]] std::uint64_t op_bytes_max() const override { return 4096; }
  [[nodiscard]] Result<void> submit(const client::StageOp& op) override {
    done_.push_back({op.op, Errc::kOk, op.length_bytes});
    return {};
  }
  std::size_t poll(std::span<Completion> out) override {
    const std::size_t count = std::min(out.size(), done_.size());
    std::copy_n(done_.begin(), count, out.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  [[nodiscard]] std::string explain(OpId) const override { return ""; }

 private:
  std::vector<Completion> done_;
};

/// Runs replays on one mover and one link that moves one piece at a time, as its stager does.
class Rig {
 public:
  static constexpr std::uint64_t kChunkBytes = 64;
  static constexpr std::uint64_t kNowTicks = 1;  ///< the time of all events

  Rig() : home_(4096), device_(4096) {
    fabric_.add_peer("a");
    const auto peer = *transport_.connect({NodeId(0), "a"}, clock_.now() + 1s);
    auto grant = fabric_.expose("a", home_, transport::Rights::kReadWrite);
    const auto region = *transport_.attach(peer, std::move(grant));
    map_ = ArenaMap(
        std::vector<ArenaExtent>{{0, home_.size(), DriverIndex(0), NodeIndex(0), region, 0}});
    area_ = {&map_, 0, map_.bytes()};
    handles_[0] = *transport_.register_memory(device_);
    client::DriverPort port;
    port.transport = &transport_;
    port.pieces_max = 1;
    port.small_pieces_max = 1;
    port.op_deadline = 1s;
    mover_.emplace(std::vector<client::DriverPort>{port}, clock_);
    mover_->add_lease(std::make_shared<client::NodeFault>(std::make_shared<client::Doorbell>()));
    client::StagePort stage;
    stage.stager = &stager_;
    stage.pieces_max = 1;
    stage.op_deadline = 1s;
    mover_->set_stager(stage);
  }
  Replay load(const schedule::Schedule& schedule, std::uint32_t owner) {
    const auto homes = client::plain_homes(schedule, area_);
    client::ReplayMemory memory;
    memory.arena = device_;
    memory.arena_handles = handles_;
    memory.homes = homes;
    memory.staging = &area_;
    memory.stage_chunk_bytes = kChunkBytes;
    return *Replay::create(schedule, memory, owner);
  }
  Mover& mover() { return *mover_; }
  /// Moves until a transfer ends, and reports it to its replay. @return its owner; 0: nothing
  /// moves.
  std::uint32_t turn(std::vector<Replay*> replays) {
    for (Replay* replay : replays) replay->pump(*mover_, kNowTicks);
    while (mover_->in_flight() > 0) {
      mover_->pump(kNowTicks);
      TransferDone done[1];
      if (mover_->poll(done) == 1) {
        REQUIRE(done[0].code == Errc::kOk);
        replays[done[0].owner - 1]->transfer_done(*mover_, done[0], kNowTicks);
        return done[0].owner;
      }
      clock_.advance(Duration(1000));
    }
    return 0;
  }

 private:
  test::SimClock clock_;
  test::SimFabric fabric_;
  test::SimTransport transport_{fabric_, clock_, {}, 7};
  std::vector<std::byte> home_;
  std::vector<std::byte> device_;
  ArenaMap map_;
  client::HomeArea area_;
  client::LocalHandles handles_;
  PromptStager stager_;
  std::optional<Mover> mover_;
};

/// One step of a one-op schedule.
void run_step(Rig& rig, Replay& replay, std::uint64_t step) {
  REQUIRE(replay.begin_step().ok());
  while (replay.executor().ready_through() <= step) REQUIRE(rig.turn({&replay}) == 1);
  REQUIRE(replay.positions_ended(step + 1).ok());
}

}  // namespace

TEST_CASE("replay: a long-running schedule shares the link with a new one") {
  Rig rig;
  Replay old = rig.load(weights(1), 1);
  for (std::uint64_t step = 0; step < 500; ++step) run_step(rig, old, step);
  Replay young = rig.load(weights(32), 2);
  REQUIRE(young.begin_step().ok());
  REQUIRE(old.begin_step().ok());
  // The old schedule needs its weight now. The young one needs its first weight now, the others
  // later.
  int before_old = 0;
  while (rig.turn({&old, &young}) != 1) before_old += 1;
  CHECK(before_old <= 2);
}

TEST_CASE("replay: a schedule alone on a link moves the soonest needed first") {
  Rig rig;
  Replay replay = rig.load(weights(8), 1);
  REQUIRE(replay.begin_step().ok());
  for (std::uint64_t i = 1; i <= 8; ++i) {
    REQUIRE(rig.turn({&replay}) == 1);
    CHECK(replay.executor().ready_through() == i);
  }
}

TEST_CASE("replay: a read that the end of the run cuts short reports the bytes that moved") {
  Rig rig;
  Replay replay = rig.load(weight_on_flash(4 * Rig::kChunkBytes), 1);
  run_step(rig, replay, 0);
  run_step(rig, replay, 1);
  constexpr std::uint64_t kWhole = 4 * Rig::kChunkBytes;
  REQUIRE(replay.staged_in_bytes() == 2 * kWhole);  // in the prologue, and for the second step
  const std::uint64_t before_the_last = replay.prefetched_bytes();
  while (replay.staged_in_bytes() == 2 * kWhole) REQUIRE(rig.turn({&replay}) == 1);
  REQUIRE(replay.begin_epilogue(rig.mover()).ok());
  while (rig.turn({&replay}) == 1) {
  }
  CHECK(replay.span(1, 0, Rig::kNowTicks).bytes == kWhole);
  CHECK(replay.span(1, 1, Rig::kNowTicks).bytes == Rig::kChunkBytes);
  CHECK(replay.span(1, 1, Rig::kNowTicks).end_ticks == Rig::kNowTicks);
  CHECK(replay.staged_in_bytes() == 2 * kWhole + Rig::kChunkBytes);
  CHECK(replay.span(2, 1, Rig::kNowTicks).bytes == replay.prefetched_bytes() - before_the_last);
  CHECK(replay.span(0, 1, Rig::kNowTicks).bytes == 0);
}
