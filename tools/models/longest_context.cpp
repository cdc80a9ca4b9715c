#include "tools/models/longest_context.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::models {

namespace {

constexpr std::uint64_t kParts = 64;

std::uint64_t part_of(std::uint64_t tokens) { return std::max<std::uint64_t>(1, tokens / kParts); }

/// One search. Run once.
class Search {
 public:
  Search(LlamaLike model, std::uint64_t at_least, const Fits& fits)
      : model_(model), at_least_(at_least), fits_(fits) {
    HO_CHECK(at_least > 0);
  }

  Result<LongestContext> up() {
    std::uint64_t tokens = at_least_;
    for (;; tokens *= 2) {
      const auto fit = try_one(tokens);
      if (!fit) return fit.error();
      if (*fit != Fit::kYes && (*fit == Fit::kNoMore || found_.tokens > 0)) break;
    }
    return bisect(tokens);
  }

  Result<LongestContext> down(std::uint64_t at_most) {
    HO_CHECK(at_most >= at_least_);
    std::uint64_t tokens = at_most;
    std::uint64_t too_long = at_most;
    for (std::uint64_t less = part_of(at_most);; less *= 2) {
      const auto fit = try_one(tokens);
      if (!fit) return fit.error();
      if (*fit == Fit::kYes) return bisect(too_long);
      if (tokens == at_least_) return found_;
      too_long = tokens;
      tokens = at_most - std::min(less, at_most - at_least_);
    }
  }

 private:
  Result<Fit> try_one(std::uint64_t tokens) {
    model_.context = tokens;
    const auto graph = llama_like(model_);
    if (!graph && tokens == at_least_) return graph.error();
    const auto fit = graph ? fits_(*graph) : Result<Fit>(Fit::kNoMore);
    if (!fit) return fit.error();
    if (*fit == Fit::kYes) {
      found_.tokens = tokens;
    } else {
      found_.graph_too_large = !graph.ok();
    }
    return *fit;
  }

  /// Between what was found and `too_long`.
  Result<LongestContext> bisect(std::uint64_t too_long) {
    while (found_.tokens > 0 && too_long > found_.tokens + part_of(found_.tokens)) {
      const std::uint64_t middle = found_.tokens + (too_long - found_.tokens) / 2;
      const auto fit = try_one(middle);
      if (!fit) return fit.error();
      if (*fit != Fit::kYes) too_long = middle;
    }
    return found_;
  }

  LlamaLike model_;
  const std::uint64_t at_least_;
  const Fits& fits_;
  LongestContext found_;
};

}  // namespace

Result<LongestContext> longest_context(LlamaLike model, std::uint64_t at_least, const Fits& fits) {
  return Search(model, at_least, fits).up();
}

Result<LongestContext> longest_context_below(LlamaLike model, std::uint64_t at_least,
                                             std::uint64_t at_most, const Fits& fits) {
  return Search(model, at_least, fits).down(at_most);
}

}  // namespace ho::models
