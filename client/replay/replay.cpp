#include "client/replay/replay.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "client/replay/stage_chunks.hpp"
#include "common/base/check.hpp"

namespace ho::client {
namespace {

using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::HomeTier;

bool fits(std::uint64_t offset, std::uint64_t bytes, std::uint64_t limit) {
  return offset <= limit && bytes <= limit - offset;
}

}  // namespace

Result<Replay> Replay::create(const schedule::Schedule& schedule, const ReplayMemory& memory,
                              std::uint32_t owner) {
  ChunkedOps chunks = chunk_stages(schedule, memory.stage_chunk_bytes);
  const schedule::Schedule& cut = chunks.schedule;
  auto executor = Executor::create(cut);
  if (!executor) return executor.error();
  Replay made(std::move(executor).value(), memory, owner);
  made.positions_ = cut.positions.size();
  made.first_ = std::move(chunks.first);
  made.steady_ = static_cast<std::uint32_t>(cut.cache_ops.size());
  made.prologue_ = static_cast<std::uint32_t>(cut.prologue.size());
  for (const auto* list : {&cut.cache_ops, &cut.prologue, &cut.epilogue}) {
    if (auto ok = made.add_moves(cut, *list); !ok) return ok.error();
  }
  made.memory_.flash = {};  // all looked up
  const std::size_t flights =
      std::min<std::size_t>(Mover::kTransfersMax, kStepsKept * made.moves_.size());
  made.flights_.resize(flights);
  for (std::uint32_t i = 0; i < flights; ++i) made.free_flights_.push_back(i);
  made.times_.resize(kStepsKept * made.steady_);
  return made;
}

/// A move between a staging slot and flash. The slot's bytes must lie on the flash's node: the node
/// does it alone.
Result<Replay::Move> Replay::stage_of(const CacheOp& op) const {
  Move move;
  move.storage = op.storage;
  move.direction = op.kind == CacheOpKind::kStageIn ? Direction::kGet : Direction::kPut;
  move.home = memory_.local_ddr;
  move.bytes = op.range_end_bytes - op.range_begin_bytes;
  if (op.storage.value() >= memory_.flash.size() || !memory_.flash[op.storage.value()] ||
      !op.ddr_offset_bytes) {
    return Error(Errc::kInvalidArgument, "a stage has no home on flash, or no staging slot");
  }
  move.flash = memory_.flash[op.storage.value()];
  move.flash->offset_bytes += op.range_begin_bytes;
  move.home_offset_bytes = *op.ddr_offset_bytes + op.range_begin_bytes;
  if (move.home == nullptr || !fits(move.home_offset_bytes, move.bytes, move.home->bytes())) {
    return Error(Errc::kInvalidArgument, "a staging slot leaves its arena");
  }
  for (std::uint64_t at = move.home_offset_bytes; at < move.home_offset_bytes + move.bytes;) {
    const ArenaExtent& extent = move.home->extent_at(at);
    if (extent.node != move.flash->node) {
      return Error(Errc::kInvalidArgument, "a staging slot lies on another node than its flash");
    }
    at = extent.begin_bytes + extent.length_bytes;
  }
  return move;
}

Result<void> Replay::add_moves(const schedule::Schedule& schedule,
                               const std::vector<CacheOp>& list) {
  for (const CacheOp& op : list) {
    Move move;
    move.storage = op.storage;
    if (op.kind == CacheOpKind::kDetach) {
      moves_.push_back(move);
      continue;
    }
    if (op.storage.value() >= schedule.storages.size() ||
        op.storage.value() >= schedule.homes.size() || !schedule.homes[op.storage.value()]) {
      return Error(Errc::kInvalidArgument, "a transfer's storage has no home");
    }
    if (op.range_end_bytes <= op.range_begin_bytes) {
      return Error(Errc::kInvalidArgument, "a transfer moves nothing");
    }
    if (op.kind == CacheOpKind::kStageIn || op.kind == CacheOpKind::kStageOut) {
      auto stage = stage_of(op);
      if (!stage) return stage.error();
      moves_.push_back(*stage);
      continue;
    }
    const auto& home = *schedule.homes[op.storage.value()];
    if ((home.tier == HomeTier::kFlash) != op.ddr_offset_bytes.has_value()) {
      return Error(Errc::kInvalidArgument,
                   "a staging slot without a home on flash, or the reverse");
    }
    const std::uint64_t slot = op.ddr_offset_bytes.value_or(home.offset_bytes);
    move.direction = op.kind == CacheOpKind::kStore ? Direction::kPut : Direction::kGet;
    move.home = home.tier == HomeTier::kRemoteDdr ? memory_.remote_ddr : memory_.local_ddr;
    move.bytes = op.range_end_bytes - op.range_begin_bytes;
    move.home_offset_bytes = slot + op.range_begin_bytes;
    move.device_offset_bytes = op.device_offset_bytes + op.range_begin_bytes;
    if (move.home == nullptr || !fits(move.home_offset_bytes, move.bytes, move.home->bytes()) ||
        !fits(move.device_offset_bytes, move.bytes, memory_.device.size())) {
      return Error(Errc::kInvalidArgument, "a transfer leaves its arena");
    }
    moves_.push_back(move);
  }
  return {};
}

const Replay::Move& Replay::move_of(const Instance& instance) const {
  switch (instance.list) {
    case CacheOpList::kSteady: return moves_[instance.index];
    case CacheOpList::kPrologue: return moves_[steady_ + instance.index];
    case CacheOpList::kEpilogue: break;
  }
  return moves_[steady_ + prologue_ + instance.index];
}

/// How far off the op is that waits for a transfer. One that no op waits for still holds back the
/// step after next (Executor's second rule).
std::uint64_t Replay::positions_until(const ReadyTransfer& ready) const {
  const std::uint64_t needed_at =
      ready.needed_at != kNeverNeeded ? ready.needed_at : (ready.instance.step + 2) * positions_;
  return needed_at - std::min(needed_at, executor_.positions_ended_count());
}

std::size_t Replay::pump(Mover& mover, std::uint64_t now_ticks) {
  std::size_t started = 0;
  mover.add_progress(executor_.positions_ended_count() - told_);
  told_ = executor_.positions_ended_count();
  while (!failure_ && !mover.full() && !free_flights_.empty()) {
    const auto ready = executor_.next();
    if (!ready) break;
    const Move& move = move_of(ready->instance);
    HO_CHECK(move.home != nullptr);
    const std::uint32_t flight = free_flights_.back();
    free_flights_.pop_back();
    flights_[flight] = {ready->instance, now_ticks};
    Transfer transfer;
    transfer.owner = owner_;
    transfer.cookie = flight;
    transfer.direction = move.direction;
    transfer.arena = move.home;
    transfer.arena_offset_bytes = move.home_offset_bytes;
    transfer.bytes = move.bytes;
    transfer.flash = move.flash;
    if (!move.flash) {
      transfer.memory = memory_.device.data() + move.device_offset_bytes;
      transfer.local = memory_.device_handles;
    }
    transfer.droppable = ready->droppable;
    transfer.urgency = Urgency::kScheduled + mover.progress() + positions_until(*ready);
    const auto accepted = mover.start(transfer);
    HO_CHECK(accepted.ok());
    if (!move.flash) {
      device_end_bytes_ = std::max(device_end_bytes_, move.device_offset_bytes + move.bytes);
    }
    in_flight_ += 1;
    started += 1;
  }
  return started;
}

Result<void> Replay::begin_epilogue(Mover& mover) {
  if (auto begun = executor_.begin_epilogue(); !begun) return begun;
  mover.drop(owner_);
  return {};
}

void Replay::transfer_done(const TransferDone& done, std::uint64_t now_ticks) {
  HO_CHECK(done.owner == owner_ && done.cookie < flights_.size() && in_flight_ > 0);
  const Flight flight = flights_[done.cookie];
  free_flights_.push_back(static_cast<std::uint32_t>(done.cookie));
  in_flight_ -= 1;
  const Move& move = move_of(flight.instance);
  if (done.code != Errc::kOk) {
    if (!failure_) fail(done.code, done.node);
    auto& named = failure_->storages;
    const bool known = std::find(named.begin(), named.end(), move.storage) != named.end();
    if (!known && named.size() < kNamedStoragesMax) named.push_back(move.storage);
    return;
  }
  if (failure_) return;  // the executor stands still; the bytes have arrived, nobody waits for them
  const bool in = move.direction == Direction::kGet;
  if (done.dropped) {
    const auto accepted = executor_.completed(flight.instance);
    HO_CHECK(accepted.ok());
    return;
  }
  if (move.flash) {
    (in ? staged_in_bytes_ : staged_out_bytes_) += move.bytes;
  } else {
    (in ? prefetched_bytes_ : stored_bytes_) += move.bytes;
  }
  if (flight.instance.list == CacheOpList::kSteady) {
    times_[(flight.instance.step % kStepsKept) * steady_ + flight.instance.index] = {
        flight.queued_ticks, done.sent_ticks, now_ticks};
  }
  const auto accepted = executor_.completed(flight.instance);
  HO_CHECK(accepted.ok());
}

void Replay::fail(Errc code, NodeIndex node) {
  if (failure_) return;
  failure_ = ReplayFailure{code, node, {}};
  failure_->storages.reserve(kNamedStoragesMax);
}

Replay::Span Replay::span(std::uint32_t cache_op, std::uint64_t step,
                          std::uint64_t begin_ticks) const {
  HO_CHECK(cache_op + 1 < first_.size());
  const auto begin = times_.begin() + static_cast<std::ptrdiff_t>((step % kStepsKept) * steady_);
  Span whole;
  for (std::uint32_t at = first_[cache_op]; at < first_[cache_op + 1]; ++at) {
    const Times& one = begin[at];
    if (one.queued_ticks < begin_ticks) continue;  // of a step long ago: not moved in this one
    const bool first = whole.end_ticks == 0;
    whole.queued_ticks = first ? one.queued_ticks : std::min(whole.queued_ticks, one.queued_ticks);
    whole.start_ticks = first ? one.start_ticks : std::min(whole.start_ticks, one.start_ticks);
    whole.end_ticks = std::max(whole.end_ticks, one.end_ticks);
    whole.bytes += moves_[at].bytes;
  }
  return whole;
}

std::optional<std::uint32_t> Replay::released_by(std::uint64_t position) const {
  const auto chunk = executor_.released_by(position);
  if (!chunk) return std::nullopt;
  const auto after = std::upper_bound(first_.begin(), first_.end(), *chunk);
  return static_cast<std::uint32_t>(after - first_.begin()) - 1;
}

}  // namespace ho::client
