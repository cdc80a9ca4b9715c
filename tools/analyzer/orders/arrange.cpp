#include "tools/analyzer/orders/arrange.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "common/base/check.hpp"
#include "tools/analyzer/problem/liveness.hpp"

namespace ho::analyzer {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

/// The position with the most live bytes that die within the step.
std::uint32_t fullest(const Graph& graph, const std::vector<OpSpan>& spans) {
  std::vector<std::int64_t> change(graph.ops.size() + 1, 0);
  for (std::size_t s = 0; s < spans.size(); ++s) {
    if (graph.storages[s].persistent || spans[s].first == OpSpan::kNever) continue;
    change[spans[s].first] += static_cast<std::int64_t>(graph.storages[s].bytes);
    change[spans[s].last + 1] -= static_cast<std::int64_t>(graph.storages[s].bytes);
  }
  std::int64_t sum = 0;
  std::int64_t most = -1;
  std::uint32_t at = 0;
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) {
    sum += change[i];
    if (sum > most) {
      most = sum;
      at = i;
    }
  }
  return at;
}

/// Where the updates at the step's end may begin: after the last use of values saved before the
/// fullest moment, and at the first op that changes a value that outlives the step. 0: nowhere.
std::vector<std::uint32_t> tails(const Graph& graph) {
  const auto spans = spans_of(graph);
  const std::uint32_t peak = fullest(graph, spans);
  std::uint32_t after_saved = 0;
  for (std::size_t s = 0; s < spans.size(); ++s) {
    const bool saved = !graph.storages[s].persistent && spans[s].first != OpSpan::kNever &&
                       spans[s].first < peak && spans[s].last > peak;
    if (saved) after_saved = std::max(after_saved, spans[s].last + 1);
  }
  std::uint32_t first_change = 0;
  while (first_change < graph.ops.size() &&
         std::none_of(graph.ops[first_change].writes.begin(), graph.ops[first_change].writes.end(),
                      [&](StorageIndex s) { return graph.storages[s.value()].persistent; })) {
    ++first_change;
  }
  std::vector<std::uint32_t> out;
  if (after_saved > 0) out.push_back(after_saved);
  if (first_change < graph.ops.size() && first_change != after_saved) out.push_back(first_change);
  return out;
}

/// Ops in order of their keys, equal ones in program order.
OpList sorted_by(const std::vector<std::uint32_t>& key) {
  OpList list;
  list.reserve(key.size());
  for (std::uint32_t i = 0; i < key.size(); ++i) list.emplace_back(i);
  std::stable_sort(list.begin(), list.end(),
                   [&](OpIndex a, OpIndex b) { return key[a.value()] < key[b.value()]; });
  return list;
}

}  // namespace

Dependencies::Dependencies(const Graph& graph) : before_(graph.ops.size()) {
  std::vector<std::uint32_t> writer(graph.storages.size(), kNone);
  std::vector<std::vector<std::uint32_t>> readers(graph.storages.size());
  std::uint32_t barrier = kNone;
  std::uint32_t since_barrier = 0;
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    auto& before = before_[i];
    const auto add = [&](std::uint32_t other) {
      if (other != kNone && other != i) before.push_back(other);
    };
    for (const StorageIndex storage : op.reads) add(writer[storage.value()]);
    for (const StorageIndex storage : op.writes) {
      add(writer[storage.value()]);
      for (const std::uint32_t reader : readers[storage.value()]) add(reader);
    }
    for (const OpIndex other : op.after) add(other.value());
    add(barrier);
    if (op.fixed) {
      for (std::uint32_t other = since_barrier; other < i; ++other) before.push_back(other);
      barrier = i;
      since_barrier = i + 1;
    }
    for (const StorageIndex storage : op.reads) readers[storage.value()].push_back(i);
    for (const StorageIndex storage : op.writes) {
      readers[storage.value()].clear();
      writer[storage.value()] = i;
    }
  }
}

OpList program_order(const Graph& graph) {
  OpList list;
  list.reserve(graph.ops.size());
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) list.emplace_back(i);
  return list;
}

std::vector<Kept> kept(const OpList& list) {
  std::vector<Kept> out(list.size(), Kept::kMoved);
  std::vector<std::uint32_t> tails;  // where the best run of each length ends
  std::vector<std::uint32_t> before(list.size(), kNone);
  std::unordered_set<std::uint32_t> ran;
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    if (!ran.insert(list[i].value()).second) {
      out[i] = Kept::kAgain;
      continue;
    }
    const auto at = std::partition_point(tails.begin(), tails.end(),
                                         [&](std::uint32_t tail) { return list[tail] < list[i]; });
    if (at != tails.begin()) before[i] = *(at - 1);
    if (at == tails.end()) {
      tails.push_back(i);
    } else {
      *at = i;
    }
  }
  for (std::uint32_t i = tails.empty() ? kNone : tails.back(); i != kNone; i = before[i]) {
    out[i] = Kept::kStays;
  }
  return out;
}

std::uint32_t moved(const OpList& list) {
  const std::vector<Kept> each = kept(list);
  return static_cast<std::uint32_t>(std::count(each.begin(), each.end(), Kept::kMoved));
}

Graph arranged(const Graph& graph, const OpList& list) {
  Graph out;
  out.name = graph.name;
  out.storages = graph.storages;
  out.ops.reserve(list.size());
  std::vector<std::uint32_t> first(graph.ops.size(), kNone);
  for (std::uint32_t p = 0; p < list.size(); ++p) {
    const std::uint32_t op = list[p].value();
    if (first[op] == kNone) first[op] = p;
    out.ops.push_back(graph.ops[op]);
    for (OpIndex& before : out.ops.back().after) {
      HO_CHECK(first[before.value()] < p);
      before = OpIndex(first[before.value()]);
    }
  }
  return out;
}

std::vector<OpList> update_early(const Graph& graph, const Dependencies& dependencies) {
  std::vector<OpList> lists;
  for (const std::uint32_t tail : tails(graph)) {
    std::vector<std::uint32_t> key(graph.ops.size());
    for (std::uint32_t i = 0; i < key.size(); ++i) {
      key[i] = i;
      const auto& before = dependencies.before(i);
      if (i < tail || graph.ops[i].fixed || before.empty()) continue;
      key[i] = 0;
      for (const std::uint32_t other : before) key[i] = std::max(key[i], key[other]);
    }
    lists.push_back(sorted_by(key));
  }
  return lists;
}

OpList produce_late(const Graph& graph, const Dependencies& dependencies) {
  const auto spans = spans_of(graph);
  std::vector<std::uint32_t> key(graph.ops.size());
  std::iota(key.begin(), key.end(), 0U);
  // Earliest key among the ops that must follow; filled from the end.
  std::vector<std::uint32_t> next(graph.ops.size(), kNone);
  for (auto i = static_cast<std::uint32_t>(graph.ops.size()); i-- > 0;) {
    const Op& op = graph.ops[i];
    std::uint64_t gained = 0;
    bool longer = false;  // an input would live longer
    for (const StorageIndex storage : op.writes) {
      const bool own = !graph.storages[storage.value()].persistent &&
                       graph.storages[storage.value()].kind != StorageKind::kWorkspace;
      if (own && spans[storage.value()].first == i) gained += graph.storages[storage.value()].bytes;
      longer = longer || !own;
    }
    for (const StorageIndex storage : op.reads) {
      const bool lives = graph.storages[storage.value()].persistent ||
                         (next[i] != kNone && spans[storage.value()].last >= next[i]);
      longer = longer || !lives;
    }
    if (!op.fixed && gained > 0 && !longer && next[i] != kNone) key[i] = next[i];
    for (const std::uint32_t other : dependencies.before(i)) {
      next[other] = std::min(next[other], key[i]);
    }
  }
  return sorted_by(key);
}

}  // namespace ho::analyzer
