#pragma once

#include <cstdint>
#include <iterator>
#include <map>

#include "common/base/check.hpp"

namespace ho::schedule::proof {

/// The last owner of each byte of an address range. The caller defines what an owner number means.
class ByteOwners {
 public:
  /// Gives [begin, end) to `owner` and calls visit(previous) for each owner of a part of it,
  /// possibly several times for the same one. Amortized O(log n): a call splits at most two pieces.
  template <typename Visit>
  void take(std::uint64_t begin, std::uint64_t end, std::uint32_t owner, Visit&& visit) {
    HO_CHECK(begin < end);
    auto at = pieces_.upper_bound(begin);
    if (at != pieces_.begin()) {
      const auto before = std::prev(at);
      if (before->second.end > begin) at = before;
    }
    // The common case: exactly one piece changes its owner.
    if (at != pieces_.end() && at->first == begin && at->second.end == end) {
      visit(at->second.owner);
      at->second.owner = owner;
      return;
    }
    while (at != pieces_.end() && at->first < end) {
      const std::uint64_t piece_begin = at->first;
      const Piece piece = at->second;
      HO_CHECK(piece_begin < piece.end && piece.end > begin);
      visit(piece.owner);
      if (piece_begin < begin) {
        at->second.end = begin;
        ++at;
      } else {
        at = pieces_.erase(at);
      }
      if (piece.end > end) at = pieces_.emplace_hint(at, end, piece);
    }
    HO_CHECK(at == pieces_.end() || at->first >= end);
    pieces_.emplace_hint(at, begin, Piece{end, owner});
  }

 private:
  struct Piece {
    std::uint64_t end = 0;
    std::uint32_t owner = 0;
  };
  std::map<std::uint64_t, Piece> pieces_;  // by first byte; disjoint
};

}  // namespace ho::schedule::proof
