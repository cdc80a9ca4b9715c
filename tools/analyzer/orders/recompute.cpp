#include "tools/analyzer/orders/recompute.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/model/links.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// Ops run again for one use. Longer chains cost more than they save, because each op keeps its
/// own operands on the device.
constexpr std::size_t kConeMax = 8;

}  // namespace

Cones::Cones(const Graph& graph, const Lifetimes& lifetimes)
    : graph_(graph),
      life_(lifetimes),
      repeatable_until_(graph.ops.size(), UINT32_MAX),
      dying_begin_(graph.ops.size() + 1, 0) {
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!graph.ops[i].recomputable || graph.ops[i].fixed) repeatable_until_[i] = 0;
  }
  std::vector<std::uint32_t> by_last_use;
  for (std::uint32_t s = 0; s < graph.storages.size(); ++s) {
    const auto points = life_.accesses_of(s);
    std::uint32_t next_write = UINT32_MAX;
    for (auto at = points.rbegin(); at != points.rend(); ++at) {
      std::uint32_t& until = repeatable_until_[at->position];
      until = std::min(until, next_write);
      if (at->access == schedule::Access::kRead) continue;
      const bool in_place = at->access == schedule::Access::kReadWrite;
      if (in_place || !may_be_made_twice(graph.storages[s])) until = 0;
      next_write = at->position;
    }
    if (!graph.storages[s].persistent && !points.empty()) by_last_use.push_back(s);
  }
  std::stable_sort(by_last_use.begin(), by_last_use.end(), [&](std::uint32_t a, std::uint32_t b) {
    return life_.accesses_of(a).back().position < life_.accesses_of(b).back().position;
  });
  const auto for_each_read = [&](auto&& visit) {
    for (const std::uint32_t s : by_last_use) {
      for (const AccessPoint& point : life_.accesses_of(s)) {
        if (point.access != schedule::Access::kWrite) visit(point.position, s);
      }
    }
  };
  for_each_read([&](std::uint32_t p, std::uint32_t) { ++dying_begin_[p + 1]; });
  for (std::size_t p = 0; p < graph.ops.size(); ++p) dying_begin_[p + 1] += dying_begin_[p];
  dying_.resize(dying_begin_.back());
  std::vector<std::uint32_t> fill(dying_begin_.begin(), dying_begin_.end() - 1);
  for_each_read([&](std::uint32_t p, std::uint32_t s) { dying_[fill[p]++] = s; });
}

bool Cones::may_be_made_twice(const Storage& storage) const {
  if (storage.persistent || storage.pinned || storage.kind == StorageKind::kInput) return false;
  // A workspace would seem to live from the first run to the second. A storage that may never
  // leave is there, and must not be written again.
  return storage.kind != StorageKind::kWorkspace && storage.hint != OffloadHint::kNever;
}

bool Cones::alive(std::uint32_t storage, std::uint32_t at) const {
  return graph_.storages[storage].persistent || life_.accesses_of(storage).back().position >= at;
}

/// The op that made the value that the storage has before `at`; kHomeVersion: none did.
std::uint32_t Cones::writer_before(std::uint32_t storage, std::uint32_t at) const {
  const auto points = life_.accesses_of(storage);
  const auto past = std::lower_bound(
      points.begin(), points.end(), at,
      [](const AccessPoint& access, std::uint32_t p) { return access.position < p; });
  if (past == points.begin()) return kHomeVersion;
  const auto last = static_cast<std::size_t>(past - points.begin()) - 1;
  if (points[last].access != schedule::Access::kRead) return points[last].position;
  if (last == 0) return kHomeVersion;
  // A read leaves the value as the gap before it has it: no search through all uses.
  const auto gaps = life_.gaps_of(storage);
  const Gap& gap = gaps[last - 1 + (gaps.front().from < 0 ? 1 : 0)];
  HO_CHECK(gap.to == points[last].position);
  return gap.written < 0 ? kHomeVersion : static_cast<std::uint32_t>(gap.written);
}

/// Ops to run again for `storage` before `at`, in order; empty: impossible. gone(op, visit) calls
/// visit(s) for what the op reads and is not there before `at`: it must be made again too.
template <typename Gone>
std::vector<std::uint32_t> Cones::cone(std::uint32_t storage, std::uint32_t at, Gone&& gone) const {
  std::vector<std::uint32_t> ops;
  std::vector<std::uint32_t> todo{storage};
  while (!todo.empty()) {
    const std::uint32_t s = todo.back();
    todo.pop_back();
    const std::uint32_t writer = writer_before(s, at);
    if (writer == kHomeVersion || !repeatable(writer, at)) return {};
    if (std::find(ops.begin(), ops.end(), writer) != ops.end()) continue;
    if (ops.size() == kConeMax) return {};
    ops.push_back(writer);
    gone(writer, [&](std::uint32_t read) { todo.push_back(read); });
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

std::vector<std::uint32_t> Cones::to_regain(std::uint32_t gap) const {
  const Gap& g = life_.gaps[gap];
  if (g.dead || g.wraps || g.mandatory || g.written < 0) return {};
  const auto at = static_cast<std::uint32_t>(g.to);
  return cone(g.storage, at, [&](std::uint32_t op, auto&& visit) {
    for (std::uint32_t i = dying_begin_[op]; i < dying_begin_[op + 1]; ++i) {
      if (alive(dying_[i], at)) break;
      visit(dying_[i]);
    }
  });
}

std::vector<std::uint32_t> Cones::to_regain(
    std::uint32_t storage, std::uint32_t at,
    const std::function<bool(std::uint32_t)>& absent) const {
  return cone(storage, at, [&](std::uint32_t op, auto&& visit) {
    for (const StorageIndex read : graph_.ops[op].reads) {
      if (!alive(read.value(), at) || absent(read.value())) visit(read.value());
    }
  });
}

std::vector<Regain> regains(const Graph& graph, const Problem& input, const Decisions& decisions) {
  const Lifetimes& life = input.lifetimes;
  const Cones cones(graph, life);
  const bool planned = !decisions.moved.empty();
  std::vector<Regain> out;
  for (std::uint32_t g = 0; g < life.gaps.size(); ++g) {
    const Gap& gap = life.gaps[g];
    if (!gap.movable || gap.dead || gap.wraps || gap.mandatory || gap.written < 0) continue;
    if (planned && !decisions.moved[g]) continue;
    const auto ops = cones.to_regain(g);
    if (ops.empty()) continue;
    Regain regain{g, 0, static_cast<std::int64_t>(life.bytes[gap.storage])};
    for (const std::uint32_t op : ops) {
      regain.cost_ns += static_cast<std::int64_t>(graph.ops[op].duration_ns);
    }
    if (planned && !input.tiers.empty()) {
      const PlanTier& tier = input.tiers[input.tier_of[gap.storage]];
      regain.saved_ns = transfer_ns(tier.read, life.bytes[gap.storage]) +
                        transfer_ns(tier.write, life.bytes[gap.storage]);
    }
    out.push_back(regain);
  }
  std::stable_sort(out.begin(), out.end(), [](const Regain& a, const Regain& b) {
    return static_cast<double>(a.cost_ns) * static_cast<double>(b.saved_ns) <
           static_cast<double>(b.cost_ns) * static_cast<double>(a.saved_ns);
  });
  return out;
}

OpList with_recompute(const Graph& graph, const Lifetimes& lifetimes, const OpList& list,
                      const std::vector<Regain>& regains, std::size_t count) {
  HO_CHECK(count <= regains.size());
  const Cones cones(graph, lifetimes);
  std::vector<std::uint32_t> gaps;
  for (std::size_t i = 0; i < count; ++i) gaps.push_back(regains[i].gap);
  std::sort(gaps.begin(), gaps.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(lifetimes.gaps[a].to, a) < std::pair(lifetimes.gaps[b].to, b);
  });
  // Per storage: the gap in which it does not exist, until it was made again.
  std::vector<const Gap*> dropped(graph.storages.size(), nullptr);
  for (const std::uint32_t g : gaps) dropped[lifetimes.gaps[g].storage] = &lifetimes.gaps[g];
  std::vector<std::pair<std::uint32_t, std::uint32_t>> inserts;  // before position, op at position
  for (const std::uint32_t g : gaps) {
    const Gap& gap = lifetimes.gaps[g];
    if (dropped[gap.storage] != &gap) continue;  // came back for another's sake
    const auto at = static_cast<std::uint32_t>(gap.to);
    const auto absent = [&](std::uint32_t s) {
      return dropped[s] != nullptr && dropped[s]->from < at && at <= dropped[s]->to;
    };
    for (const std::uint32_t op : cones.to_regain(gap.storage, at, absent)) {
      inserts.emplace_back(at, op);
      for (const StorageIndex storage : graph.ops[op].writes) dropped[storage.value()] = nullptr;
    }
  }
  std::sort(inserts.begin(), inserts.end());
  inserts.erase(std::unique(inserts.begin(), inserts.end()), inserts.end());
  OpList out;
  out.reserve(list.size() + inserts.size());
  std::size_t next = 0;
  for (std::uint32_t p = 0; p < list.size(); ++p) {
    for (; next < inserts.size() && inserts[next].first == p; ++next) {
      out.push_back(list[inserts[next].second]);
    }
    out.push_back(list[p]);
  }
  return out;
}

}  // namespace ho::analyzer
