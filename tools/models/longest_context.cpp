#include "tools/models/longest_context.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::models {

Result<std::uint64_t> longest_context(LlamaLike model, std::uint64_t at_least, const Fits& fits) {
  HO_CHECK(at_least > 0);
  constexpr std::uint64_t kParts = 64;
  const auto fits_with = [&](std::uint64_t context) -> Result<bool> {
    model.context = context;
    const auto graph = llama_like(model);
    if (graph) return fits(*graph);
    if (context > at_least) return false;
    return graph.error();
  };

  std::uint64_t longest = 0;
  std::uint64_t next = at_least;
  while (true) {
    const auto fit = fits_with(next);
    if (!fit) return fit.error();
    if (!*fit) break;
    longest = next;
    next *= 2;
  }
  if (longest == 0) return longest;
  while (next - longest > std::max<std::uint64_t>(1, longest / kParts)) {
    const std::uint64_t middle = longest + (next - longest) / 2;
    const auto fit = fits_with(middle);
    if (!fit) return fit.error();
    (*fit ? longest : next) = middle;
  }
  return longest;
}

}  // namespace ho::models
