#include "tools/analyzer/plan/sketch.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/plan/timeline.hpp"

namespace ho::analyzer {
namespace {

/// How often one variant is made: after three looks at its own waits they hardly change (measured).
constexpr std::size_t kLooks = 4;
/// Steps that differ by less than this count as equal.
constexpr std::int64_t kEqualPermille = 10;
/// A sketch is stable if its own known waits change its step by less than this, and the number of
/// its moves by less than ten times as much. Further looks would not change it.
constexpr std::int64_t kSettledPermille = 1;

bool settled(const Sketch& first, const Sketch& next) {
  const auto moves = static_cast<std::int64_t>(first.moves);
  return std::abs(first.step_ns - next.step_ns) < first.step_ns / 1000 * kSettledPermille &&
         std::abs(moves - static_cast<std::int64_t>(next.moves)) <= moves / 100 * kSettledPermille;
}

/// Puts the indices of the best ones first and keeps only their choices, which take a hundred MB in
/// a large step. Among equal ones the later one comes last.
std::vector<std::size_t> rank(std::vector<Sketch>& all) {
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].step_ns < all[b].step_ns; });
  const std::int64_t best_ns = all[order.front()].step_ns;
  const auto past = std::find_if(order.begin(), order.end(), [&](std::size_t each) {
    return all[each].step_ns - best_ns > best_ns / 1000 * kEqualPermille;
  });
  std::stable_sort(order.begin(), past,
                   [&](std::size_t a, std::size_t b) { return all[a].moves < all[b].moves; });
  for (std::size_t i = kSketchesKept; i < order.size(); ++i) all[order[i]].choice.reset();
  return order;
}

}  // namespace

std::vector<Sketch> sketches(const SketchInput& input, const std::vector<ChooseOptions>& variants,
                             std::size_t tries, std::int64_t close_ns) {
  std::vector<Sketch> all;
  std::vector<std::size_t> order;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    std::vector<std::int64_t> waits;
    Sketch first;  // made as no waits were known
    for (std::size_t look = 0; look < (v == 0 ? 1 : kLooks) && tries > 0; ++look, --tries) {
      ChooseOptions options = variants[v];
      if (look > 0) options.stall_ns = &waits;
      Choice choice = choose(input.choosing, options);
      if (choice.failure) break;
      const Draft draft = emit_unpacked(input.graph, input.moving, choice);
      Sketch next{v, look > 0 ? waits : std::vector<std::int64_t>(), 0, draft.cache_ops.size(), {}};
      next.step_ns = steady_step_ns(draft, input.moving, input.flash, &waits);
      if (look == 0) first = next;
      const bool last = look > 0 && settled(first, next);
      if (next.step_ns <= close_ns) tries = 1;
      next.choice = std::move(choice);
      all.push_back(std::move(next));
      order = rank(all);
      if (last) break;
    }
  }
  std::vector<Sketch> best;
  for (std::size_t i = 0; i < std::min(order.size(), kSketchesKept); ++i) {
    best.push_back(std::move(all[order[i]]));
  }
  return best;
}

}  // namespace ho::analyzer
