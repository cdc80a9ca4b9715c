#include "tools/analyzer/problem/liveness.hpp"

#include <algorithm>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::analyzer {

using schedule::Access;

std::vector<schedule::Operand> operands_of(const Op& op) {
  std::vector<schedule::Operand> operands;
  operands.reserve(op.reads.size() + op.writes.size());
  for (const StorageIndex storage : op.reads) operands.push_back({storage, Access::kRead, 0});
  // Sorts for lookups, so that a concatenation of thousands of tensors stays near-linear.
  std::vector<std::pair<StorageIndex, std::size_t>> reads;
  for (std::size_t i = 0; i < operands.size(); ++i) reads.emplace_back(operands[i].storage, i);
  std::sort(reads.begin(), reads.end());
  for (const StorageIndex storage : op.writes) {
    const auto found = std::lower_bound(reads.begin(), reads.end(), std::pair(storage, size_t{0}));
    if (found != reads.end() && found->first == storage) {
      operands[found->second].access = Access::kReadWrite;
    } else {
      operands.push_back({storage, Access::kWrite, 0});
    }
  }
  return operands;
}

namespace {

bool writes(Access access) { return access != Access::kRead; }

void collect_accesses(const Graph& graph, Lifetimes& out) {
  const std::size_t storages = graph.storages.size();
  std::vector<std::uint32_t> count(storages + 1, 0);
  std::vector<std::vector<schedule::Operand>> operands;
  operands.reserve(graph.ops.size());
  for (const Op& op : graph.ops) {
    operands.push_back(operands_of(op));
    for (const auto& operand : operands.back()) ++count[operand.storage.value()];
  }
  out.access_begin.assign(storages + 1, 0);
  for (std::size_t s = 0; s < storages; ++s)
    out.access_begin[s + 1] = out.access_begin[s] + count[s];
  out.accesses.resize(out.access_begin[storages]);
  std::vector<std::uint32_t> next(out.access_begin.begin(), out.access_begin.end() - 1);
  for (std::uint32_t p = 0; p < operands.size(); ++p) {
    for (const auto& operand : operands[p]) {
      out.accesses[next[operand.storage.value()]++] = {p, operand.access};
    }
  }
}

/// Appends the gaps of one storage that has accesses.
void collect_gaps(const Storage& storage, std::uint32_t index, Lifetimes& out) {
  const auto points = out.accesses_of(index);
  const std::int64_t steps = out.positions;
  const bool has_link = !storage.pinned && storage.kind != StorageKind::kWorkspace;
  const bool never = storage.hint == OffloadHint::kNever;
  const bool input = storage.kind == StorageKind::kInput && !storage.persistent;
  std::int64_t written = -1;
  std::uint32_t version = kHomeVersion;
  std::int64_t last_write = -1;
  for (const AccessPoint& point : points) {
    if (writes(point.access)) last_write = point.position;
  }
  if (storage.persistent && last_write >= 0) {
    // The step begins with the last value of the step before.
    written = last_write - steps;
    version = out.versions++;
  }
  const std::uint32_t first_version = version;
  if (input && points.front().access != Access::kWrite && points.front().position > 0) {
    out.gaps.push_back(
        {index, -1, points.front().position, -1, kHomeVersion, false, false, true, true});
  } else if (input && points.front().access != Access::kWrite) {
    out.gaps.push_back({index, -1, 0, -1, kHomeVersion, false, false, true, true});
  }
  for (std::size_t i = 0; i < points.size(); ++i) {
    const AccessPoint& here = points[i];
    if (writes(here.access)) {
      written = here.position;
      const bool last = storage.persistent && here.position == last_write;
      version = last ? first_version : out.versions++;
    }
    const bool wraps = i + 1 == points.size();
    if (wraps && !storage.persistent) break;
    const AccessPoint& there = wraps ? points.front() : points[i + 1];
    Gap gap{index, here.position, there.position + (wraps ? steps : 0), written, version};
    gap.dead = there.access == Access::kWrite;
    gap.wraps = wraps;
    gap.movable = has_link && !never && gap.to > gap.from + 1;
    out.gaps.push_back(gap);
  }
}

/// Per position: bytes of operands and of values that live through it and cannot leave.
void sum_profiles(const Graph& graph, Lifetimes& out) {
  std::vector<std::int64_t> live(out.positions + 1, 0);
  std::vector<std::int64_t> pinned(out.positions + 1, 0);
  out.working_set.assign(out.positions, 0);
  for (std::uint32_t s = 0; s < graph.storages.size(); ++s) {
    const Storage& storage = graph.storages[s];
    const auto points = out.accesses_of(s);
    if (points.empty()) continue;
    const auto bytes = static_cast<std::int64_t>(out.bytes[s]);
    const bool input = storage.kind == StorageKind::kInput;
    std::uint32_t begin = points.front().position;
    std::uint32_t end = points.back().position;
    const bool supplied = input && points.front().access != Access::kWrite;
    if (storage.persistent || supplied) begin = 0;
    if (storage.persistent) end = out.positions - 1;
    live[begin] += bytes;
    live[end + 1] -= bytes;
    if (storage.pinned) {
      const std::uint32_t from = storage.persistent ? 0 : points.front().position;
      pinned[from] += bytes;
      pinned[end + 1] -= bytes;
    } else {
      for (const AccessPoint& point : points) out.working_set[point.position] += out.bytes[s];
    }
  }
  for (const Gap& gap : out.gaps) {
    // Values that must stay; pinned ones are counted above.
    const Storage& storage = graph.storages[gap.storage];
    if (gap.movable || storage.pinned || gap.to <= gap.from + 1) continue;
    if (gap.dead && storage.hint != OffloadHint::kNever) continue;
    const auto bytes = static_cast<std::int64_t>(out.bytes[gap.storage]);
    const auto hold = [&](std::int64_t first, std::int64_t past) {
      pinned[static_cast<std::size_t>(first)] += bytes;
      pinned[static_cast<std::size_t>(past)] -= bytes;
    };
    const std::int64_t n = out.positions;
    hold(gap.from + 1, gap.wraps ? n : gap.to);
    if (gap.wraps) hold(0, gap.to - n);
  }
  out.live.assign(out.positions, 0);
  std::int64_t live_sum = 0;
  std::int64_t pinned_sum = 0;
  for (std::uint32_t p = 0; p < out.positions; ++p) {
    live_sum += live[p];
    pinned_sum += pinned[p];
    HO_CHECK(live_sum >= 0 && pinned_sum >= 0);
    out.live[p] = static_cast<std::uint64_t>(live_sum);
    out.working_set[p] += static_cast<std::uint64_t>(pinned_sum);
  }
}

}  // namespace

Lifetimes lifetimes_of(const Graph& graph, std::uint64_t align_bytes) {
  Lifetimes out;
  out.positions = static_cast<std::uint32_t>(graph.ops.size());
  out.bytes.reserve(graph.storages.size());
  for (const Storage& storage : graph.storages) {
    out.bytes.push_back(align_up(storage.bytes, align_bytes));
    out.copies.push_back(storage.copies > 1 ? 2 : 1);
  }
  collect_accesses(graph, out);
  out.gap_begin.reserve(graph.storages.size() + 1);
  out.gap_begin.push_back(0);
  for (std::uint32_t s = 0; s < graph.storages.size(); ++s) {
    if (!out.accesses_of(s).empty()) collect_gaps(graph.storages[s], s, out);
    out.gap_begin.push_back(static_cast<std::uint32_t>(out.gaps.size()));
  }
  sum_profiles(graph, out);
  return out;
}

std::vector<OpSpan> spans_of(const Graph& graph) {
  std::vector<OpSpan> spans(graph.storages.size());
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) {
    for (const auto* list : {&graph.ops[i].reads, &graph.ops[i].writes}) {
      for (const StorageIndex storage : *list) {
        OpSpan& span = spans[storage.value()];
        span.first = std::min(span.first, i);
        span.last = i;
      }
    }
  }
  return spans;
}

std::vector<std::int64_t> unmanaged_changes(const Graph& graph) {
  const std::size_t positions = graph.ops.size();
  const std::vector<OpSpan> spans = spans_of(graph);
  std::vector<std::int64_t> changes(positions + 1, 0);
  for (std::size_t s = 0; s < graph.storages.size(); ++s) {
    const auto bytes = static_cast<std::int64_t>(graph.storages[s].bytes);
    const bool persistent = graph.storages[s].persistent;
    if (!persistent && spans[s].first == OpSpan::kNever) continue;
    changes[persistent ? 0 : spans[s].first] += bytes;
    changes[persistent ? positions : spans[s].last + 1] -= bytes;
  }
  return changes;
}

std::uint64_t peak_of(const std::vector<std::int64_t>& changes) {
  std::int64_t sum = 0;
  std::int64_t peak = 0;
  for (const std::int64_t change : changes) peak = std::max(peak, sum += change);
  return static_cast<std::uint64_t>(peak);
}

}  // namespace ho::analyzer
