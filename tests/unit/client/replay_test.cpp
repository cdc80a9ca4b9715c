#include "client/replay.hpp"

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "tests/support/schedule_builder.hpp"
#include "tests/support/sim_transport.hpp"

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

/// `count` ops, each of which reads a weight that is fetched for it in every step.
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

/// Replays on one mover and one link that moves one piece at a time.
class Rig {
 public:
  Rig() : home_(4096), device_(4096) {
    fabric_.add_peer("a");
    const auto peer = *transport_.connect({NodeId(0), "a"}, clock_.now() + 1s);
    auto grant = fabric_.expose("a", home_, transport::Rights::kReadWrite);
    const auto region = *transport_.attach(peer, std::move(grant));
    map_ = ArenaMap(
        std::vector<ArenaExtent>{{0, home_.size(), DriverIndex(0), NodeIndex(0), region, 0}});
    handles_[0] = *transport_.register_memory(device_);
    client::DriverPort port;
    port.transport = &transport_;
    port.pieces_max = 1;
    port.small_pieces_max = 1;
    port.op_deadline = 1s;
    mover_.emplace(std::vector<client::DriverPort>{port}, clock_);
  }
  Replay load(const schedule::Schedule& schedule, std::uint32_t owner) {
    return *Replay::create(schedule, {device_, handles_, &map_, &map_}, owner);
  }
  /// Moves until a transfer ends, and tells its replay. @return whose it was; 0: nothing moves.
  std::uint32_t turn(std::vector<Replay*> replays) {
    for (Replay* replay : replays) replay->pump(*mover_, 0);
    while (mover_->in_flight() > 0) {
      mover_->pump(0);
      TransferDone done[1];
      if (mover_->poll(done) == 1) {
        REQUIRE(done[0].code == Errc::kOk);
        replays[done[0].owner - 1]->transfer_done(done[0], 0);
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
  client::LocalHandles handles_;
  std::optional<Mover> mover_;
};

/// One step of a one-op schedule.
void run_step(Rig& rig, Replay& replay, std::uint64_t step) {
  REQUIRE(replay.executor().begin_step().ok());
  while (replay.executor().ready_through() <= step) REQUIRE(rig.turn({&replay}) == 1);
  REQUIRE(replay.executor().positions_ended(step + 1).ok());
}

}  // namespace

TEST_CASE("replay: a schedule that has run long shares the link with a new one") {
  Rig rig;
  Replay old = rig.load(weights(1), 1);
  for (std::uint64_t step = 0; step < 500; ++step) run_step(rig, old, step);
  Replay young = rig.load(weights(32), 2);
  REQUIRE(young.executor().begin_step().ok());
  REQUIRE(old.executor().begin_step().ok());
  // The old one needs its weight now, the young one its first now and the others later.
  int before_old = 0;
  while (rig.turn({&old, &young}) != 1) before_old += 1;
  CHECK(before_old <= 2);
}

TEST_CASE("replay: on a link of its own a schedule moves what is needed soonest first") {
  Rig rig;
  Replay replay = rig.load(weights(8), 1);
  REQUIRE(replay.executor().begin_step().ok());
  for (std::uint64_t i = 1; i <= 8; ++i) {
    REQUIRE(rig.turn({&replay}) == 1);
    CHECK(replay.executor().ready_through() == i);
  }
}
