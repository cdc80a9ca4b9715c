#include "tools/models/costs.hpp"

#include <algorithm>
#include <cmath>

namespace ho::models {

double product_flops(std::uint64_t rows, std::uint64_t inner, std::uint64_t width) {
  return 2 * static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(width);
}

double causal_pairs(Tokens queries, Tokens keys) {
  // The sum of min(q + 1, end) - begin over the queries that see the block.
  const auto seen_by_first_n = [keys](std::uint64_t n) {
    if (n <= keys.begin) return 0.0;
    const auto ramp = static_cast<double>(std::min(n, keys.end) - keys.begin);
    const double full = n > keys.end ? static_cast<double>(n - keys.end) : 0.0;
    return ramp * (ramp + 1) / 2 + full * static_cast<double>(keys.count());
  };
  return seen_by_first_n(queries.end) - seen_by_first_n(queries.begin);
}

bool attends(std::uint64_t block, std::uint64_t blocks, double attended) {
  // Rounding noise above a whole number must not add a block.
  const double share = std::ceil(static_cast<double>(blocks) * attended - 1e-9);
  const auto chosen = std::max<std::uint64_t>(static_cast<std::uint64_t>(share), 1);
  return (block + 1) * chosen / blocks > block * chosen / blocks;
}

std::uint64_t experts_used(std::uint64_t rows, std::uint64_t experts, std::uint64_t active) {
  if (experts == 1) return 1;
  const double missed = 1 - static_cast<double>(active) / static_cast<double>(experts);
  const double used =
      static_cast<double>(experts) * (1 - std::pow(missed, static_cast<double>(rows)));
  // Rounding noise above a whole number must not add an expert.
  return std::clamp(static_cast<std::uint64_t>(std::ceil(used - 1e-9)), active, experts);
}

double all_reduce_seconds(std::uint64_t bytes, std::uint64_t ranks, double bytes_per_s) {
  const auto n = static_cast<double>(ranks);
  return 2 * (n - 1) / n * static_cast<double>(bytes) / bytes_per_s;
}

}  // namespace ho::models
