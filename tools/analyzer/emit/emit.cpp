#include "tools/analyzer/emit/emit.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/emit/copies.hpp"
#include "tools/analyzer/emit/emitter.hpp"
#include "tools/analyzer/emit/packing.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;
using schedule::Position;

CacheOp Emitter::whole(CacheOpKind kind, std::uint32_t storage, std::uint64_t offset) const {
  CacheOp op;
  op.kind = kind;
  op.storage = StorageIndex(storage);
  op.range_end_bytes = graph_.storages[storage].bytes;
  op.device_offset_bytes = offset;
  return op;
}

std::size_t Emitter::access_at(std::uint32_t storage, std::int64_t position) const {
  const auto points = life_.accesses_of(storage);
  const std::int64_t local = ((position % n_) + n_) % n_;
  const auto found = std::lower_bound(
      points.begin(), points.end(), local,
      [](const AccessPoint& point, std::int64_t at) { return point.position < at; });
  HO_CHECK(found != points.end() && found->position == local);
  return life_.access_begin[storage] + static_cast<std::size_t>(found - points.begin());
}

/// Makes one residence of accesses [first, first + count) of the storage, counted cyclically.
void Emitter::close_run(std::uint32_t storage, std::size_t first, std::size_t count,
                        std::uint32_t arrives, std::uint32_t leaves) {
  const auto points = life_.accesses_of(storage);
  const std::size_t last = first + count - 1;
  Residence r;
  r.storage = storage;
  r.arrives = arrives;
  r.leaves = leaves;
  r.first_access = points[first].position;
  r.last_access = points[last % points.size()].position + (last >= points.size() ? n_ : 0);
  r.begin = r.first_access * kMoments + kOpStarts;
  if (arrives != kNone) {
    const Gap& gap = life_.gaps[arrives];
    if (!gap.dead) r.begin = decisions_.fetch_from[arrives] - (gap.to - r.first_access) * kMoments;
  }
  r.end = r.last_access * kMoments + kMoments - 1;
  if (leaves != kNone) {
    r.end = decisions_.leave_by[leaves] + (r.last_access - life_.gaps[leaves].from) * kMoments;
  }
  HO_CHECK(position_of(r.begin) <= r.first_access && position_of(r.end) >= r.last_access &&
           r.end - r.begin < cycle_);
  for (std::size_t i = first; i <= last; ++i) {
    residence_of_[life_.access_begin[storage] + i % points.size()] =
        static_cast<std::uint32_t>(residences_.size());
  }
  residences_.push_back(r);
}

void Emitter::add_residences(std::uint32_t storage) {
  const auto points = life_.accesses_of(storage);
  if (points.empty()) return;
  const std::uint32_t base = life_.gap_begin[storage];
  const auto gaps = life_.gaps_of(storage);
  if (!graph_.storages[storage].persistent) {
    const bool input = !gaps.empty() && gaps[0].mandatory;
    std::uint32_t arrives = input ? base : kNone;
    std::size_t first = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const bool last = i + 1 == points.size();
      const auto gap = static_cast<std::uint32_t>(base + i + (input ? 1 : 0));
      if (!last && !decisions_.moved[gap]) continue;
      close_run(storage, first, i - first + 1, arrives, last ? kNone : gap);
      arrives = gap;
      first = i + 1;
    }
    return;
  }
  std::vector<std::size_t> cuts;  // accesses after which the storage leaves the device
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    if (decisions_.moved[base + i]) cuts.push_back(i);
  }
  if (cuts.empty()) {
    for (std::size_t i = 0; i < points.size(); ++i) {
      residence_of_[life_.access_begin[storage] + i] =
          static_cast<std::uint32_t>(residences_.size());
    }
    residences_.push_back({storage, 0, points.front().position, points.back().position, cycle_ - 1,
                           kNone, kNone, true});
    return;
  }
  for (std::size_t c = 0; c < cuts.size(); ++c) {
    const std::size_t first = (cuts[c] + 1) % points.size();
    const std::size_t next = cuts[(c + 1) % cuts.size()];
    const std::size_t count = (next + points.size() - first) % points.size() + 1;
    close_run(storage, first, count, static_cast<std::uint32_t>(base + cuts[c]),
              static_cast<std::uint32_t>(base + next));
  }
}

void Emitter::pack_device(const EmitOptions& options) {
  std::vector<Block> blocks;
  blocks.reserve(residences_.size());
  for (const Residence& r : residences_) blocks.push_back({r.begin, r.end, life_.bytes[r.storage]});
  Packing packing = pack(blocks, cycle_, options.enough_bytes, options.patience);
  offset_ = std::move(packing.offsets);
  out_.arena_bytes = packing.height_bytes;
  if (out_.arena_bytes > options.enough_bytes) {
    out_.over_bytes = over_bytes(blocks, offset_, options.enough_bytes, n_);
  }
  out_.live_bound_bytes = packing.load_bytes;
  out_.packing_work = packing.work;
  out_.access_offset.assign(life_.accesses.size(), 0);
  for (std::size_t i = 0; i < life_.accesses.size(); ++i) {
    out_.access_offset[i] = offset_[residence_of_[i]];
  }
}

/// One Store per stored version, in the step that writes it.
void Emitter::emit_stores() {
  store_of_.assign(life_.versions, kNone);
  for (const Gap& gap : life_.gaps) {
    if (gap.version == kHomeVersion || store_of_[gap.version] != kNone) continue;
    if (decisions_.store_from[gap.version] == kNoStore) continue;
    const std::size_t access = access_at(gap.storage, gap.written);
    CacheOp op = whole(CacheOpKind::kStore, gap.storage, out_.access_offset[access]);
    op.after_position = after(decisions_.store_from[gap.version]);
    const auto points = life_.accesses_of(gap.storage);
    const std::size_t local = access - life_.access_begin[gap.storage];
    const bool persistent = graph_.storages[gap.storage].persistent;
    for (std::size_t i = local + 1; i <= local + points.size(); ++i) {
      if (i >= points.size() && !persistent) break;
      const AccessPoint& point = points[i % points.size()];
      if (point.access == schedule::Access::kRead) continue;
      op.before_position = Position(point.position);
      op.before_next_step = i >= points.size();
      break;
    }
    if (on_flash(gap.storage)) {
      op.ddr_offset_bytes = slot_offset_[staging_.slot_of_store[gap.version]];
    }
    store_of_[gap.version] = static_cast<std::uint32_t>(out_.cache_ops.size());
    out_.cache_ops.push_back(std::move(op));
    list_key_.emplace_back(decisions_.store_from[gap.version], 0);
  }
}

void Emitter::emit_moves() {
  detach_of_.assign(life_.gaps.size(), kNone);
  fetch_of_.assign(life_.gaps.size(), kNone);
  for (std::uint32_t g = 0; g < life_.gaps.size(); ++g) {
    if (!decisions_.moved[g]) continue;
    const Gap& gap = life_.gaps[g];
    if (!gap.mandatory) {
      const std::uint64_t offset = out_.access_offset[access_at(gap.storage, gap.from)];
      CacheOp op = whole(CacheOpKind::kDetach, gap.storage, offset);
      op.after_position = Position(static_cast<std::uint32_t>(gap.from));
      if (gap.version != kHomeVersion && store_of_[gap.version] != kNone) {
        op.after_cache_ops.push_back({CacheOpIndex(store_of_[gap.version]), gap.written < 0});
      }
      detach_of_[g] = static_cast<std::uint32_t>(out_.cache_ops.size());
      out_.cache_ops.push_back(std::move(op));
      list_key_.emplace_back(-1, 0);
      if (gap.dead) block(detach_of_[g], step_of(gap.to, n_), gap.to % n_);
    }
    if (gap.dead) continue;
    const std::uint64_t offset = out_.access_offset[access_at(gap.storage, gap.to)];
    CacheOp op = whole(CacheOpKind::kPrefetch, gap.storage, offset);
    const std::int64_t begin = position_of(decisions_.fetch_from[g]);
    const std::int64_t step = std::max<std::int64_t>(0, step_of_fetch(gap.storage, begin));
    if (begin > 0 && !begins_with_step(gap.storage, begin)) {
      op.after_position = Position(static_cast<std::uint32_t>((begin - 1) % n_));
    }
    op.before_position = Position(static_cast<std::uint32_t>(gap.to % n_));
    op.before_next_step = step_of(gap.to, n_) > step;
    if (!gap.mandatory) op.after_cache_ops.push_back({CacheOpIndex(detach_of_[g]), step == 1});
    if (on_flash(gap.storage)) {
      op.ddr_offset_bytes = slot_offset_[staging_.slot_of_fetch[g]];
    }
    fetch_of_[g] = static_cast<std::uint32_t>(out_.cache_ops.size());
    out_.cache_ops.push_back(std::move(op));
    list_key_.emplace_back(decisions_.fetch_from[g] - step * cycle_, gap.to);
  }
}

/// The op at `position`, `step` steps after the Detach's own, waits for it (the earliest such
/// op).
void Emitter::block(std::uint32_t detach, std::int64_t step, std::int64_t position) {
  HO_CHECK(step >= 0);
  if (step > 1) {  // the last op of the next step is early enough for later owners
    step = 1;
    position = n_ - 1;
  }
  CacheOp& op = out_.cache_ops[detach];
  const auto at = std::pair(step == 1, static_cast<std::uint32_t>(position));
  if (op.before_position && std::pair(op.before_next_step, op.before_position->value()) <= at)
    return;
  op.before_position = Position(at.second);
  op.before_next_step = at.first;
}

void Emitter::wait_for_release(const Residence& owner, std::int64_t owner_lap,
                               const Residence& next, std::int64_t next_lap) {
  if (owner.leaves == kNone) return;  // dies with its last access: the chain of ops orders it
  const std::uint32_t detach = detach_of_[owner.leaves];
  const std::int64_t released = owner_lap + step_of(owner.last_access, n_);
  const bool fetched = next.arrives != kNone && fetch_of_[next.arrives] != kNone;
  if (!fetched) {
    block(detach, next_lap - released, next.first_access);
    return;
  }
  const std::int64_t begin = position_of(next.begin);
  const bool supplied = life_.gaps[next.arrives].mandatory && begin == 0;
  const std::int64_t step = next_lap + (supplied ? 0 : step_of_fetch(next.storage, begin));
  if (step - released > 1) {
    block(detach, 1, n_ - 1);
    return;
  }
  wait_for(detach, released, fetch_of_[next.arrives], step);
}

/// The second cache op, in its step, waits for the first in its own, at most one step before.
void Emitter::wait_for(std::uint32_t before, std::int64_t before_step, std::uint32_t after,
                       std::int64_t after_step) {
  HO_CHECK(after_step >= before_step && after_step <= before_step + 1);
  CacheOp& op = out_.cache_ops[after];
  const schedule::CacheOpRef ref{CacheOpIndex(before), after_step > before_step};
  if (std::find(op.after_cache_ops.begin(), op.after_cache_ops.end(), ref) ==
      op.after_cache_ops.end()) {
    op.after_cache_ops.push_back(ref);
  }
}

/// Before it writes bytes of the device a residence waits for the release of each earlier owner.
void Emitter::emit_order_of_bytes() {
  std::vector<HeldBytes> blocks;
  std::vector<std::uint32_t> owners;
  for (std::uint32_t r = 0; r < residences_.size(); ++r) {
    const Residence& residence = residences_[r];
    if (residence.always) continue;
    blocks.push_back({residence.begin, residence.end, offset_[r], life_.bytes[residence.storage]});
    owners.push_back(r);
  }
  for_each_succession(
      blocks, cycle_,
      [&](std::uint32_t owner, std::int64_t owner_lap, std::uint32_t next, std::int64_t next_lap) {
        wait_for_release(residences_[owners[owner]], owner_lap, residences_[owners[next]],
                         next_lap);
      });
}

/// Planned start order: the runtime serves a channel in this order.
void Emitter::sort_list() {
  std::vector<std::tuple<std::int64_t, ListKey, std::uint32_t>> order;
  order.reserve(out_.cache_ops.size());
  for (std::uint32_t i = 0; i < out_.cache_ops.size(); ++i) {
    const CacheOp& op = out_.cache_ops[i];
    const std::int64_t after = op.after_position ? op.after_position->value() : -1;
    order.emplace_back(after, list_key_[i], i);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::uint32_t> place(order.size());
  std::vector<CacheOp> sorted;
  sorted.reserve(order.size());
  for (const auto& [after, key, i] : order) {
    place[i] = static_cast<std::uint32_t>(sorted.size());
    sorted.push_back(std::move(out_.cache_ops[i]));
  }
  for (CacheOp& op : sorted) {
    for (auto& ref : op.after_cache_ops) ref.op = CacheOpIndex(place[ref.op.value()]);
    std::sort(op.after_cache_ops.begin(), op.after_cache_ops.end(),
              [](const auto& a, const auto& b) {
                return std::pair(a.op, a.previous_step) < std::pair(b.op, b.previous_step);
              });
  }
  out_.cache_ops = std::move(sorted);
}

Draft Emitter::run(const EmitOptions& options) {
  residence_of_.assign(life_.accesses.size(), kNone);
  for (std::uint32_t s = 0; s < graph_.storages.size(); ++s) add_residences(s);
  pack_device(options);
  if (in_.flash != nullptr) staging_ = stage(graph_, in_, decisions_);
  pack_homes();
  emit_stores();
  emit_moves();
  if (staging_.active()) emit_staging();
  emit_order_of_bytes();
  if (staging_.active()) emit_order_of_slots();
  emit_prologue();
  emit_epilogue();
  sort_list();
  add_second_stores(graph_, out_);
  out_.staging = std::move(staging_);
  return std::move(out_);
}

Draft Emitter::run_homes() {
  out_.access_offset.assign(life_.accesses.size(), 0);
  pack_homes();
  emit_stores();
  emit_moves();
  return std::move(out_);
}

Draft emit(const Graph& graph, const Problem& input, const Decisions& decisions,
           const EmitOptions& options) {
  return Emitter(graph, input, decisions).run(options);
}

Draft emit_homes(const Graph& graph, const Problem& input, const Decisions& decisions) {
  return Emitter(graph, input, decisions).run_homes();
}

}  // namespace ho::analyzer
