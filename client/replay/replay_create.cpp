// How a replay is made: every cache op is looked up ahead of time.
#include <algorithm>
#include <utility>

#include "client/replay/replay.hpp"
#include "client/replay/stage_chunks.hpp"

namespace ho::client {
namespace {

using schedule::Access;
using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::Schedule;

bool fits(std::uint64_t offset, std::uint64_t bytes, std::uint64_t limit) {
  return offset <= limit && bytes <= limit - offset;
}

constexpr Duration kPredictedMax = std::chrono::hours(1);

/// Four times as long as the plan has for the transfer.
Duration late_after(const CacheOp& op) {
  const Duration planned(static_cast<Duration::rep>(op.end_ns - std::min(op.start_ns, op.end_ns)));
  return std::max(op.kind == CacheOpKind::kStore ? kPutLateMin : kGetLateMin,
                  4 * std::clamp(planned, Duration{0}, kPredictedMax));
}

/// Puts `members` of each key together. @return where each key's begin; one more than there are.
template <typename Member, typename Key>
std::vector<std::uint32_t> group(std::vector<Member>& members, std::size_t keys, const Key& key) {
  std::stable_sort(members.begin(), members.end(),
                   [&](const Member& a, const Member& b) { return key(a) < key(b); });
  std::vector<std::uint32_t> first(keys + 1, 0);
  for (const Member& member : members) first[key(member) + 1] += 1;
  for (std::size_t i = 0; i < keys; ++i) first[i + 1] += first[i];
  return first;
}

}  // namespace

Result<Replay> Replay::create(const Schedule& schedule, const ReplayMemory& memory,
                              std::uint32_t owner) {
  if (memory.homes.size() != schedule.storages.size()) {
    return Error(Errc::kInvalidArgument, "not one home for each storage");
  }
  ChunkedOps chunks = chunk_stages(schedule, memory.stage_chunk_bytes);
  const Schedule& cut = chunks.schedule;
  const auto when = memory.streams != nullptr ? CompleteWhen::kQueued : CompleteWhen::kMoved;
  Replay made(Executor::create(cut, when), memory, owner);
  made.positions_ = cut.positions.size();
  made.steady_ = static_cast<std::uint32_t>(cut.cache_ops.size());
  made.prologue_ = static_cast<std::uint32_t>(cut.prologue.size());
  for (const auto& [list, first] :
       {std::pair(&cut.cache_ops, &chunks.first), std::pair(&cut.prologue, &chunks.first_prologue),
        std::pair(&cut.epilogue, &chunks.first_epilogue)}) {
    if (auto ok = made.add_moves(*list, *first); !ok) return ok.error();
  }
  made.first_ = std::move(chunks.first);
  made.memory_.homes = {};  // all looked up
  made.index_moves(schedule.storages.size());
  made.index_effects(schedule);
  const std::size_t flights =
      std::min<std::size_t>(Mover::kTransfersMax, kStepsKept * made.moves_.size());
  made.flights_.resize(flights);
  made.leaving_.reserve(kStepsKept * made.moves_.size());
  if (!memory.arena) {
    made.hosted_ = std::make_unique<HostedMemory>(schedule.storages.size(), flights);
  }
  made.times_.resize(kStepsKept * made.steady_);
  std::vector<ValuePlace> places(schedule.storages.size());
  for (std::size_t s = 0; s < places.size(); ++s)
    places[s].at_home = schedule.storages[s].persistent;
  made.restart(places, 0);
  return made;
}

/// A move between a staging slot and flash. The slot's bytes must lie on the flash's node: the node
/// does it alone.
Result<Replay::Move> Replay::stage_of(const CacheOp& op) const {
  Move move;
  const StorageHome& home = memory_.homes[op.storage.value()];
  if (!home.flash || !op.ddr_offset_bytes || memory_.staging == nullptr) {
    return Error(Errc::kInvalidArgument, "a stage has no home on flash, or no staging slot");
  }
  move.flash = home.flash;
  move.flash->offset_bytes += op.range_begin_bytes;
  move.area = memory_.staging;
  move.by_slot = true;
  move.area_offset_bytes.fill(*op.ddr_offset_bytes + op.range_begin_bytes);
  const std::uint64_t begin = move.area_offset_bytes[0];
  const std::uint64_t bytes = op.range_end_bytes - op.range_begin_bytes;
  if (!fits(begin, bytes, move.area->length_bytes)) {
    return Error(Errc::kInvalidArgument, "a staging slot leaves its arena");
  }
  const std::uint64_t first = move.area->begin_bytes + begin;
  for (std::uint64_t at = first; at < first + bytes;) {
    const ArenaExtent& extent = move.area->map->extent_at(at);
    if (extent.node != move.flash->node) {
      return Error(Errc::kInvalidArgument, "a staging slot lies on another node than its flash");
    }
    at = extent.begin_bytes + extent.length_bytes;
  }
  return move;
}

/// A move between the device and a home in pool memory, or a staging slot.
Result<Replay::Move> Replay::copy_of(const CacheOp& op) const {
  Move move;
  const StorageHome& home = memory_.homes[op.storage.value()];
  if (home.flash.has_value() != op.ddr_offset_bytes.has_value()) {
    return Error(Errc::kInvalidArgument, "a staging slot without a home on flash, or the reverse");
  }
  const HomePlace own = home.place(op.copy);
  move.area = op.ddr_offset_bytes ? memory_.staging : own.area;
  move.by_slot = op.ddr_offset_bytes.has_value();
  if (move.area == nullptr) return Error(Errc::kInvalidArgument, "a transfer has no home");
  move.home = op.copy;
  if (home.doubled()) move.other = home.place(op.copy == 0 ? 1 : 0);
  const std::uint64_t bytes = op.range_end_bytes - op.range_begin_bytes;
  for (std::size_t parity = 0; parity < move.area_offset_bytes.size(); ++parity) {
    const std::uint64_t slot = op.ddr_offset_bytes.value_or(own.offset_bytes[parity]);
    move.area_offset_bytes[parity] = slot + op.range_begin_bytes;
    move.other.offset_bytes[parity] += op.range_begin_bytes;
    if (!fits(move.area_offset_bytes[parity], bytes, move.area->length_bytes) ||
        (home.doubled() &&
         !fits(move.other.offset_bytes[parity], bytes, move.other.area->length_bytes))) {
      return Error(Errc::kInvalidArgument, "a transfer leaves its home");
    }
  }
  if (memory_.arena && !fits(op.device_offset_bytes, op.range_end_bytes, memory_.arena->size())) {
    return Error(Errc::kInvalidArgument, "a transfer leaves the device arena");
  }
  return move;
}

Result<void> Replay::add_moves(const std::vector<CacheOp>& list,
                               const std::vector<std::uint32_t>& first) {
  std::uint32_t op_of_list = 0;
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    const CacheOp& op = list[i];
    if (op.storage.value() >= memory_.homes.size()) {
      return Error(Errc::kInvalidArgument, "no such storage");
    }
    Result<Move> made = Move{};
    if (op.kind != CacheOpKind::kDetach) {
      if (op.range_end_bytes <= op.range_begin_bytes) {
        return Error(Errc::kInvalidArgument, "a transfer moves nothing");
      }
      const bool stages = op.kind == CacheOpKind::kStageIn || op.kind == CacheOpKind::kStageOut;
      made = stages ? stage_of(op) : copy_of(op);
      if (!made) return made.error();
    }
    if (i == first[op_of_list]) {
      wholes_.push_back({first[op_of_list + 1] - first[op_of_list], 0, false});
      op_of_list += 1;
    }
    made->kind = op.kind;
    made->storage = op.storage;
    made->whole = static_cast<std::uint32_t>(wholes_.size() - 1);
    made->device_offset_bytes = op.device_offset_bytes;
    made->begin_bytes = op.range_begin_bytes;
    made->bytes = op.range_end_bytes - op.range_begin_bytes;
    made->late_after = late_after(op);
    moves_.push_back(*made);
  }
  return {};
}

void Replay::index_moves(std::size_t storages) {
  for (std::uint32_t i = 0; i < steady_ + prologue_; ++i) moves_by_storage_.push_back(i);
  moves_first_ = group(moves_by_storage_, storages,
                       [this](std::uint32_t i) { return moves_[i].storage.value(); });
}

void Replay::index_effects(const Schedule& schedule) {
  const auto storages = static_cast<std::uint32_t>(schedule.storages.size());
  struct Named {
    std::uint32_t storage = 0;
    Use use;
  };
  std::vector<Named> named;
  std::vector<std::uint32_t> last(storages, UINT32_MAX);
  for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
    for (const auto& operand : schedule.positions[p].operands) {
      named.push_back({operand.storage.value(), {p, operand.access != Access::kWrite}});
      last[operand.storage.value()] = p;
    }
  }
  use_first_ = group(named, storages, [](const Named& one) { return one.storage; });
  for (const Named& one : named) uses_.push_back(one.use);
  for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
    effect_first_.push_back(static_cast<std::uint32_t>(effects_.size()));
    for (const auto& operand : schedule.positions[p].operands) {
      const std::uint32_t s = operand.storage.value();
      Effect effect;
      effect.storage = operand.storage;
      effect.writes = operand.access != Access::kRead;
      effect.ends = !schedule.storages[s].persistent && last[s] == p;
      effect.device_offset_bytes = operand.device_offset_bytes;
      if (effect.writes || effect.ends) effects_.push_back(effect);
    }
  }
  effect_first_.push_back(static_cast<std::uint32_t>(effects_.size()));
  input_of_.resize(storages);
  for (std::uint32_t s = 0; s < storages; ++s) {
    const Storage& storage = schedule.storages[s];
    persistent_.push_back(storage.persistent ? 1 : 0);
    if (storage.kind == StorageKind::kInput && !storage.persistent) {
      input_of_[s] = static_cast<std::uint32_t>(inputs_.size());
      inputs_.push_back(StorageIndex(s));
    }
  }
  input_missed_ = std::vector<std::array<std::atomic<std::uint8_t>, 2>>(inputs_.size());
}

}  // namespace ho::client
