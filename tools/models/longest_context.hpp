#pragma once

#include <cstdint>
#include <functional>

#include "common/base/result.hpp"
#include "tools/models/llama_like.hpp"

namespace ho::models {

/// Whether a step is acceptable.
enum class Fit : std::uint8_t {
  kYes,
  kNo,      ///< a longer context may be, where its ops take longer
  kNoMore,  ///< nor is any longer context
};
using Fits = std::function<Result<Fit>(const Graph&)>;

struct LongestContext {
  std::uint64_t tokens = 0;      ///< 0: none fits
  bool graph_too_large = false;  ///< llama_like() refused the next longer context that was tried
};

/// The longest context whose step fits, to one part in 64: doubles it from `at_least`, beyond the
/// first that fits or to the first that says kNoMore, then bisects. A graph that llama_like()
/// refuses as too large does not fit. Turns longer than the context are not tried.
/// @return the errors of llama_like() for the shortest context, and those of `fits`.
[[nodiscard]] Result<LongestContext> longest_context(LlamaLike model, std::uint64_t at_least,
                                                     const Fits& fits);

/// The same for a caller that knows a bound: tries `at_most`, then ever longer ones from `at_least`
/// on and, if none fits, ever shorter ones, then bisects. One try is enough where the bound fits.
/// @param at_most  at least `at_least`
[[nodiscard]] Result<LongestContext> longest_context_below(LlamaLike model, std::uint64_t at_least,
                                                           std::uint64_t at_most, const Fits& fits);

}  // namespace ho::models
