#pragma once

#include <cstdint>

namespace ho::models {

// What ops of a decoder compute, and collectives move. Pure.

/// Half-open, in tokens of a sequence.
struct Tokens {
  std::uint64_t begin;
  std::uint64_t end;
  [[nodiscard]] std::uint64_t count() const { return end - begin; }
};

/// A matrix product's gradients take two products; attention's, with the scores computed again,
/// five for its two. Source: Dao, arXiv 2307.08691.
inline constexpr double kBackwardProducts = 2;
inline constexpr double kBackwardAttention = 2.5;

/// FLOPs of [rows, inner] times [inner, width].
[[nodiscard]] double product_flops(std::uint64_t rows, std::uint64_t inner, std::uint64_t width);

/// Pairs of a query and a key that is not newer.
[[nodiscard]] double causal_pairs(Tokens queries, Tokens keys);

/// Whether a query that attends to the share `attended` of the blocks attends to this one: evenly
/// spread, the last one always.
[[nodiscard]] bool attends(std::uint64_t block, std::uint64_t blocks, double attended);

/// The number of experts that `rows` tokens need: the expected number of distinct ones where each
/// draws `active` of its own, rounded up.
[[nodiscard]] std::uint64_t experts_used(std::uint64_t rows, std::uint64_t experts,
                                         std::uint64_t active);

/// A ring all-reduce: each rank sends and receives the bytes 2 (n - 1) / n times.
/// @param bytes_per_s  of a rank's network, each way
[[nodiscard]] double all_reduce_seconds(std::uint64_t bytes, std::uint64_t ranks,
                                        double bytes_per_s);

}  // namespace ho::models
