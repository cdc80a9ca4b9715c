#include "tools/analyzer/sketch.hpp"

#include <algorithm>
#include <utility>

#include "tools/analyzer/emit.hpp"
#include "tools/analyzer/timeline.hpp"

namespace ho::analyzer {
namespace {

/// How often one variant is made: after three looks at its own waits they hardly change (measured).
constexpr std::size_t kLooks = 4;
/// Steps that differ by less than this count as equal.
constexpr std::int64_t kEqualPermille = 10;

}  // namespace

std::vector<Sketch> sketches(const SketchInput& input, const std::vector<ChooseOptions>& variants,
                             std::size_t tries, std::int64_t close_ns) {
  std::vector<Sketch> all;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    std::vector<std::int64_t> waits;
    for (std::size_t look = 0; look < (v == 0 ? 1 : kLooks) && tries > 0; ++look, --tries) {
      ChooseOptions options = variants[v];
      if (look > 0) options.stall_ns = &waits;
      const Choice choice = choose(input.choosing, options);
      if (choice.failure) break;
      const Draft draft = emit_unpacked(input.graph, input.moving, choice);
      Sketch next{v, look > 0 ? waits : std::vector<std::int64_t>(), 0, draft.cache_ops.size()};
      next.step_ns = steady_step_ns(draft, input.moving, input.flash, &waits);
      all.push_back(std::move(next));
      if (all.back().step_ns <= close_ns) tries = 1;
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Sketch& a, const Sketch& b) { return a.step_ns < b.step_ns; });
  const auto past = std::find_if(all.begin(), all.end(), [&](const Sketch& each) {
    return each.step_ns - all.front().step_ns > all.front().step_ns / 1000 * kEqualPermille;
  });
  std::stable_sort(all.begin(), past,
                   [](const Sketch& a, const Sketch& b) { return a.moves < b.moves; });
  if (all.size() > kSketchesKept) all.resize(kSketchesKept);
  return all;
}

}  // namespace ho::analyzer
