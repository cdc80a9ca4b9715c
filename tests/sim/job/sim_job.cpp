#include "tests/sim/job/sim_job.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/units.hpp"

namespace ho::test {
namespace {

using schedule::Access;

constexpr Duration kOpDeadline = std::chrono::milliseconds(20);
constexpr Duration kControlNotice = std::chrono::milliseconds(1);
constexpr std::uint64_t kSegmentBytes = 8192;

SimLink random_link(Prng& random, SimFault fault) {
  SimLink link;
  link.delay_max = Duration(1000 + static_cast<std::int64_t>(random.below(100000)));
  link.depth_ops_max = static_cast<std::uint32_t>(1 + random.below(8));
  if (random.below(2) == 0) link.bytes_per_s = 100'000'000 + random.below(1'000'000'000);
  if (fault == SimFault::kLoss) link.loss = 0.02;
  return link;
}

SimStager::Options random_flash(Prng& random, SimFault fault) {
  SimStager::Options flash;
  flash.delay_max = Duration(1000 + static_cast<std::int64_t>(random.below(300000)));
  flash.depth_ops = static_cast<std::uint32_t>(1 + random.below(8));
  if (fault == SimFault::kBadFlash) flash.failure = 0.02;
  return flash;
}

/// A stream of bytes that depends on every bit of `seed`.
void fill(std::span<std::byte> into, std::uint64_t seed) {
  Prng stream(seed);
  for (std::size_t i = 0; i < into.size(); i += 8) {
    const std::uint64_t word = stream.next();
    std::memcpy(into.data() + i, &word, std::min<std::size_t>(8, into.size() - i));
  }
}

}  // namespace

SimJob::SimJob(const schedule::Schedule& schedule, std::uint64_t seed, SimFault fault)
    : schedule_(schedule),
      random_(seed),
      fault_(fault),
      link_(random_link(random_, fault)),
      transport_(fabric_, clock_, link_, random_.next()),
      stager_(clock_, random_flash(random_, fault), random_.next(),
              [this](client::NodeIndex node, SegmentId segment) {
                return std::span(nodes_[node.value()].segments[segment.value()]);
              }),
      arena_(schedule.arena_bytes) {
  for (const char* address : {"a", "b"}) {
    fabric_.add_peer(address);
    const auto peer = transport_.connect({NodeId(0), address}, clock_.now() + kOpDeadline);
    HO_CHECK(peer.ok());
    nodes_.push_back({address, *peer, {}});
  }
  std::vector<client::FlashRoom> rooms;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    // The flash lays out homes in whole blocks, while these plans use single bytes.
    const std::uint64_t blocks_bytes = schedule.storages.size() * client::kFlashAlign;
    rooms.push_back({client::NodeIndex(i), nodes_[i].address, schedule.flash_bytes + blocks_bytes});
  }
  const auto plan = client::plan_flash_homes(schedule, rooms);
  HO_CHECK(plan.ok());
  client::move_slots(*plan, schedule_);
  open_flash(*plan);
  local_ = spread(plan->local_ddr_bytes, plan->parts);
  remote_ = spread(schedule.remote_ddr_bytes, {});
  fill(arena_, seed ^ 0xdeadU);
  const auto local = transport_.register_memory(arena_);
  HO_CHECK(local.ok());
  handles_[0] = *local;

  client::DriverPort port;
  port.transport = &transport_;
  port.piece_bytes = 1 + random_.below(9000);
  port.pieces_max = static_cast<std::uint32_t>(1 + random_.below(12));
  port.small_pieces_max = static_cast<std::uint32_t>(1 + random_.below(12));
  port.op_deadline = kOpDeadline;
  mover_.emplace(std::vector<client::DriverPort>{port}, clock_);
  client::StagePort stage;
  stage.stager = &stager_;
  stage.piece_bytes = 1 + random_.below(5000);
  stage.pieces_max = static_cast<std::uint32_t>(1 + random_.below(12));
  stage.op_deadline = kOpDeadline;
  mover_->set_stager(stage);
  client::ReplayMemory memory{arena_, handles_, &local_, &remote_, places_};
  memory.stage_chunk_bytes = 64 + random_.below(3000);
  auto replay = client::Replay::create(schedule_, memory, 1);
  HO_CHECK(replay.ok());
  replay_.emplace(std::move(replay).value());

  for (std::uint32_t i = 0; i < schedule.storages.size(); ++i) {
    model_.push_back(random_value(schedule.storages[i].bytes));
    if (schedule.storages[i].persistent) write_home(i, model_[i]);
  }
  if (fault == SimFault::kKillPeer || fault == SimFault::kStopPeer) {
    fault_at_ = clock_.now() + Duration(static_cast<std::int64_t>(random_.below(3'000'000)));
    fault_node_ = static_cast<std::uint32_t>(random_.below(nodes_.size()));
  }
}

SimJob::~SimJob() = default;

client::ArenaMap SimJob::spread(std::uint64_t bytes, std::span<const client::StagingPart> parts) {
  std::vector<client::ArenaExtent> extents;
  for (std::uint64_t at = 0; at < bytes;) {
    auto index = static_cast<std::uint32_t>(extents.size() % nodes_.size());
    std::uint64_t length = std::min(kSegmentBytes, bytes - at);
    for (const client::StagingPart& part : parts) {
      const std::uint64_t end = part.begin_bytes + part.length_bytes;
      if (end <= at) continue;
      if (part.begin_bytes > at) {
        length = std::min(length, part.begin_bytes - at);
      } else {
        index = part.node.value();
        length = std::min(length, end - at);
      }
      break;
    }
    Node& node = nodes_[index];
    node.segments.emplace_back(kSegmentBytes);
    auto grant = fabric_.expose(node.address, node.segments.back(), transport::Rights::kReadWrite);
    const auto region = transport_.attach(node.peer, std::move(grant));
    HO_CHECK(region.ok());
    extents.push_back({at, length, client::DriverIndex(0), client::NodeIndex(index), *region, 0,
                       SegmentId(node.segments.size() - 1)});
    at += length;
  }
  return client::ArenaMap(std::move(extents));
}

std::byte* SimJob::home_byte(std::uint32_t storage, std::uint64_t at) {
  if (const auto& place = places_[storage]) {
    return &stager_.flash(place->node)[place->offset_bytes + at];
  }
  const auto& home = *schedule_.homes[storage];
  const bool remote = home.tier == schedule::HomeTier::kRemoteDdr;
  const std::uint64_t offset = home.offset_bytes + at;
  const client::ArenaExtent& extent = (remote ? remote_ : local_).extent_at(offset);
  return &nodes_[extent.node.value()].segments[extent.segment.value()][offset - extent.begin_bytes];
}

void SimJob::write_home(std::uint32_t storage, const std::vector<std::byte>& value) {
  for (std::uint64_t i = 0; i < value.size(); ++i) *home_byte(storage, i) = value[i];
}

/// The flash of a node is one extent, filled with bytes that no op may ever see.
void SimJob::open_flash(const client::FlashPlan& plan) {
  for (const auto& node : plan.nodes) {
    stager_.flash(node.node).assign(node.flash_bytes, std::byte{0xee});
  }
  for (const auto& home : plan.homes) {
    places_.emplace_back();
    if (home) places_.back() = client::FlashPlace{home->node, 1, home->offset_bytes};
  }
}

TimePoint SimJob::next_event(TimePoint otherwise) const {
  return std::min(transport_.next_event().value_or(otherwise),
                  stager_.next_event().value_or(otherwise));
}

std::vector<std::byte> SimJob::read_home(std::uint32_t storage) {
  std::vector<std::byte> value(schedule_.storages[storage].bytes);
  for (std::uint64_t i = 0; i < value.size(); ++i) value[i] = *home_byte(storage, i);
  return value;
}

std::vector<std::byte> SimJob::random_value(std::uint64_t bytes) {
  std::vector<std::byte> value(bytes);
  fill(value, random_.next());
  return value;
}

SimOutcome SimJob::run(std::uint64_t steps) {
  const std::uint64_t positions = schedule_.positions.size();
  const auto done = [&] { return replay_->failure().has_value() || !outcome_.wrong.empty(); };
  for (std::uint64_t step = 0; step < steps && !done(); ++step) {
    for (std::uint32_t i = 0; i < schedule_.storages.size(); ++i) {
      const Storage& storage = schedule_.storages[i];
      if (storage.persistent || storage.kind != StorageKind::kInput) continue;
      model_[i] = random_value(storage.bytes);
      write_home(i, model_[i]);
    }
    const auto begun = replay_->executor().begin_step();
    HO_CHECK(begun.ok());
    for (std::uint32_t p = 0; p < positions && !done(); ++p) {
      if (!drive_until(step * positions + p)) break;
      run_op(p, step);
      // The op takes about its duration; transfers go on meanwhile.
      const std::uint64_t nominal = schedule_.ops[schedule_.positions[p].op.value()].duration_ns;
      const TimePoint ends =
          clock_.now() + Duration(static_cast<std::int64_t>(random_.below(2 * nominal + 1)));
      while (clock_.now() < ends && !done()) {
        turn();
        clock_.advance_to(
            std::min(ends, std::min(next_event(ends), clock_.now() + kControlNotice)));
      }
      const auto ended = replay_->executor().positions_ended(step * positions + p + 1);
      HO_CHECK(ended.ok());
    }
  }
  if (!done()) {
    const auto began = replay_->begin_epilogue(*mover_);
    HO_CHECK(began.ok());
  }
  drain();
  outcome_.staged_bytes = stager_.moved();
  outcome_.failure = replay_->failure();
  outcome_.finished = replay_->executor().state() == client::Executor::State::kFinished;
  for (std::uint32_t i = 0; outcome_.finished && i < schedule_.storages.size(); ++i) {
    if (schedule_.storages[i].persistent && read_home(i) != model_[i] && outcome_.wrong.empty()) {
      outcome_.wrong = "home of " + schedule_.storages[i].name + " after the last step";
    }
  }
  return outcome_;
}

bool SimJob::drive_until(std::uint64_t position) {
  for (std::uint64_t turns = 0; replay_->executor().ready_through() <= position; ++turns) {
    HO_CHECK(turns < 10'000'000);
    if (replay_->failure()) return false;
    turn();
    if (replay_->executor().ready_through() > position) {
      if (turns > 0) check_release(position);
      break;
    }
    if (replay_->quiet() && mover_->in_flight() == 0 && !replay_->failure()) {
      outcome_.wrong = "deadlock at position " + std::to_string(position);
      return false;
    }
    outcome_.stall_turns += 1;
    clock_.advance_to(
        std::min(next_event(clock_.now() + kControlNotice), clock_.now() + kControlNotice));
  }
  return !replay_->failure().has_value();
}

/// The position is ready now, so the cache op reported as its release must have ended now. In the
/// first step it may be one of the prologue.
void SimJob::check_release(std::uint64_t position) {
  const std::uint64_t step = position / schedule_.positions.size();
  const auto by = replay_->released_by(position);
  const auto ended_now = [&](std::uint64_t of_step) {
    const client::Replay::Span span = replay_->span(*by, of_step, 0);
    return span.end_ticks == ticks() && span.queued_ticks <= span.start_ticks &&
           span.start_ticks <= span.end_ticks;
  };
  if (!by && step == 0) return;
  for (std::uint64_t back = 0; by && back <= std::min<std::uint64_t>(step, 2); ++back) {
    if (ended_now(step - back)) return;
  }
  outcome_.wrong = "position " + std::to_string(position) + " was not released by " +
                   (by ? "cache op " + std::to_string(*by) : "a transfer");
}

std::uint64_t SimJob::ticks() const {
  return static_cast<std::uint64_t>(clock_.now().time_since_epoch().count());
}

/// One turn of the loop of the transfer thread.
void SimJob::turn() {
  inject();
  replay_->pump(*mover_, ticks());
  mover_->pump(ticks());
  std::array<client::TransferDone, 4> done;
  const std::size_t count = mover_->poll(done);
  for (std::size_t i = 0; i < count; ++i) replay_->transfer_done(done[i], ticks());
  if (replay_->failure() && outcome_.failed_after == Duration{} && fault_at_ < clock_.now()) {
    outcome_.failed_after = clock_.now() - fault_at_;
  }
}

void SimJob::inject() {
  if (clock_.now() >= fault_at_ && !outcome_.fault_happened) {
    outcome_.fault_happened = true;
    if (fault_ == SimFault::kKillPeer) {
      fabric_.kill_peer(nodes_[fault_node_].address, std::chrono::seconds(30));
      stager_.kill(client::NodeIndex(fault_node_));
      close_at_ = clock_.now() + kControlNotice;
    } else {
      fabric_.stop_peer(nodes_[fault_node_].address);
      stager_.stop(client::NodeIndex(fault_node_));
    }
  }
  if (clock_.now() >= close_at_) {
    // The control connection is lost: like the transfer thread, close the peer and fail the replay.
    close_at_ = TimePoint::max();
    transport_.close_peer(nodes_[fault_node_].peer);
    replay_->fail(Errc::kUnavailable, client::NodeIndex(fault_node_));
  }
}

void SimJob::run_op(std::uint32_t position, std::uint64_t step) {
  std::uint64_t seed = (std::uint64_t{position} << 32U) + step;
  for (const auto& operand : schedule_.positions[position].operands) {
    const std::uint32_t storage = operand.storage.value();
    if (operand.access == Access::kWrite) continue;
    const std::span<const std::byte> here(arena_.data() + operand.device_offset_bytes,
                                          model_[storage].size());
    if (!std::equal(here.begin(), here.end(), model_[storage].begin())) {
      outcome_.wrong = schedule_.storages[storage].name + " at position " +
                       std::to_string(position) + " of step " + std::to_string(step);
      return;
    }
    seed ^= checksum64(here) + storage;
  }
  for (const auto& operand : schedule_.positions[position].operands) {
    if (operand.access == Access::kRead) continue;
    const std::uint32_t storage = operand.storage.value();
    fill(model_[storage], seed + storage);
    std::copy(model_[storage].begin(), model_[storage].end(),
              arena_.begin() + static_cast<std::ptrdiff_t>(operand.device_offset_bytes));
  }
}

/// Waits until all operations in flight have ended, by completion or by their deadline.
void SimJob::drain() {
  for (std::uint64_t turns = 0;; ++turns) {
    HO_CHECK(turns < 10'000'000);
    turn();
    const bool finished = replay_->executor().state() == client::Executor::State::kFinished;
    if (mover_->in_flight() == 0 && (replay_->failure() || finished || !outcome_.wrong.empty())) {
      break;
    }
    clock_.advance_to(
        std::min(next_event(clock_.now() + kControlNotice), clock_.now() + kControlNotice));
  }
  HO_CHECK(replay_->in_flight() == 0);
}

}  // namespace ho::test
