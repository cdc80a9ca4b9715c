#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "tools/analyzer/packing/csv.hpp"
#include "tools/analyzer/packing/greedy.hpp"
#include "tools/analyzer/packing/instance.hpp"

namespace ho::test {

/// `count` lifetimes within [0, span); on a cycle they may extend beyond it.
inline std::vector<packing::Lifetime> random_lifetimes(std::uint64_t seed, std::size_t count,
                                                       std::int64_t span, std::int64_t cycle,
                                                       std::uint64_t bytes_max) {
  Prng prng(seed);
  std::vector<packing::Lifetime> out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(span)));
    const std::int64_t longest = cycle == 0 ? span - begin : cycle;
    const auto length =
        1 + static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(longest)));
    out.push_back({begin, begin + length, 1 + static_cast<std::int64_t>(prng.below(bytes_max))});
  }
  return out;
}

/// Whether two lifetimes meet, by checking every time.
inline bool together(const packing::Lifetime& a, const packing::Lifetime& b, std::int64_t cycle) {
  const auto meet = [&](std::int64_t shift) {
    return a.begin < b.end + shift && b.begin + shift < a.end;
  };
  return meet(0) || (cycle != 0 && (meet(cycle) || meet(-cycle)));
}

inline bool disjoint(const std::vector<packing::Lifetime>& lifetimes,
                     const std::vector<std::int64_t>& offsets, std::int64_t cycle) {
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    if (offsets[i] < 0) return false;
    for (std::size_t j = 0; j < i; ++j) {
      if (!together(lifetimes[i], lifetimes[j], cycle)) continue;
      if (offsets[i] < offsets[j] + lifetimes[j].bytes &&
          offsets[j] < offsets[i] + lifetimes[i].bytes) {
        return false;
      }
    }
  }
  return true;
}

/// Checks that no two items that meet share a byte, and that the height is that of the highest
/// item.
inline bool is_packing(const packing::Instance& instance, const packing::Layout& layout) {
  if (layout.offsets.size() != instance.items.size()) return false;
  std::int64_t height = 0;
  for (std::size_t i = 0; i < instance.items.size(); ++i) {
    if (layout.offsets[i] < 0) return false;
    height = std::max(height, layout.offsets[i] + instance.items[i].bytes);
    for (std::size_t j = 0; j < i; ++j) {
      if (!meet(instance.items[i], instance.items[j])) continue;
      if (layout.offsets[i] < layout.offsets[j] + instance.items[j].bytes &&
          layout.offsets[j] < layout.offsets[i] + instance.items[i].bytes) {
        return false;
      }
    }
  }
  return height == layout.height_bytes;
}

/// The lowest possible height. Stacking any packing's buffers in order of their offsets is never
/// higher, so the best order of stacking is the optimum. O(n!).
inline std::int64_t optimum(const std::vector<packing::Lifetime>& lifetimes, std::int64_t cycle) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::int64_t best = INT64_MAX;
  do {
    std::vector<std::int64_t> top(lifetimes.size(), 0);
    std::int64_t height = 0;
    for (std::size_t a = 0; a < order.size(); ++a) {
      std::int64_t low = 0;
      for (std::size_t b = 0; b < a; ++b) {
        if (together(lifetimes[order[a]], lifetimes[order[b]], cycle)) {
          low = std::max(low, top[order[b]]);
        }
      }
      top[order[a]] = low + lifetimes[order[a]].bytes;
      height = std::max(height, top[order[a]]);
    }
    best = std::min(best, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

/// Cuts a rectangle of `width` x `height` into `count` pieces: a problem whose optimum is `height`,
/// without a free byte at any time.
inline std::vector<packing::Lifetime> cut_rectangle(std::uint64_t seed, std::size_t count,
                                                    std::int64_t width, std::int64_t height) {
  Prng prng(seed);
  struct Piece {
    std::int64_t begin, end, low, top;
  };
  std::vector<Piece> pieces{{0, width, 0, height}};
  while (pieces.size() < count) {
    const std::size_t pick = prng.below(pieces.size());
    Piece& piece = pieces[pick];
    Piece other = piece;
    const auto within = [&](std::int64_t a, std::int64_t b) {
      return a + 1 + static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(b - a - 1)));
    };
    if (prng.below(2) == 0) {
      if (piece.end - piece.begin < 2) continue;
      piece.end = other.begin = within(piece.begin, piece.end);
    } else {
      if (piece.top - piece.low < 2) continue;
      piece.top = other.low = within(piece.low, piece.top);
    }
    pieces.push_back(other);
  }
  std::vector<packing::Lifetime> out;
  for (const Piece& piece : pieces) out.push_back({piece.begin, piece.end, piece.top - piece.low});
  return out;
}

}  // namespace ho::test
