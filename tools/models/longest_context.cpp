#include "tools/models/longest_context.hpp"

#include <algorithm>
#include <cmath>

#include "common/base/check.hpp"

namespace ho::models {

namespace {

constexpr std::uint64_t kParts = 64;
constexpr std::uint64_t kGallop = 4;

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

  Result<LongestContext> below(std::uint64_t at_most) {
    HO_CHECK(at_most >= at_least_);
    const auto most = try_one(at_most);
    if (!most) return most.error();
    if (*most == Fit::kYes) return found_;
    // Contexts that are far too long take longest to try, so that the others come from below.
    for (std::uint64_t tokens = at_least_; tokens < at_most; tokens *= kGallop) {
      const auto fit = try_one(tokens);
      if (!fit) return fit.error();
      if (*fit != Fit::kYes && (*fit == Fit::kNoMore || found_.tokens > 0)) return bisect(tokens);
    }
    if (found_.tokens > 0) return bisect(at_most);
    // Or only long ones fit, whose ops hide more.
    std::uint64_t too_long = at_most;
    for (std::uint64_t less = part_of(at_most); too_long > at_least_; less *= 2) {
      const std::uint64_t tokens = at_most - std::min(less, at_most - at_least_);
      const auto fit = try_one(tokens);
      if (!fit) return fit.error();
      if (*fit == Fit::kYes) return bisect(too_long);
      too_long = tokens;
    }
    return found_;
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

  /// Between what was found and `too_long`: by ratio, as what fits is tried sooner than what does
  /// not.
  Result<LongestContext> bisect(std::uint64_t too_long) {
    while (found_.tokens > 0 && too_long > found_.tokens + part_of(found_.tokens)) {
      const double ratio =
          std::sqrt(static_cast<double>(too_long) / static_cast<double>(found_.tokens));
      const std::uint64_t middle =
          std::clamp(static_cast<std::uint64_t>(static_cast<double>(found_.tokens) * ratio),
                     found_.tokens + 1, too_long - 1);
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
  return Search(model, at_least, fits).below(at_most);
}

}  // namespace ho::models
