#include "tools/analyzer/packing.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <set>

#include "common/base/check.hpp"

namespace ho::analyzer {
namespace {

/// Above this the quadratic orders take too long for their gain.
constexpr std::size_t kCarefulBlocks = 6000;

struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A block as one or two spans of [0, positions).
struct Piece {
  Span first;
  Span second{0, -1};  // empty unless the block spans the step's end
};

Piece piece_of(const Block& block, std::int64_t positions) {
  HO_CHECK(block.begin <= block.end && block.bytes > 0);
  if (block.end - block.begin + 1 >= positions) return {{0, positions - 1}};
  std::int64_t begin = block.begin % positions;
  if (begin < 0) begin += positions;
  const std::int64_t end = begin + (block.end - block.begin);
  if (end < positions) return {{begin, end}};
  return {{begin, positions - 1}, {0, end - positions}};
}

bool meet(const Span& a, const Span& b) { return a.begin <= b.end && b.begin <= a.end; }

bool meet(const Piece& a, const Piece& b) {
  const bool a_two = a.second.end >= 0;
  const bool b_two = b.second.end >= 0;
  if (meet(a.first, b.first)) return true;
  if (a_two && meet(a.second, b.first)) return true;
  if (b_two && meet(a.first, b.second)) return true;
  return a_two && b_two;  // both hold bytes at position 0
}

std::uint64_t load_of(const std::vector<Block>& blocks, const std::vector<Piece>& pieces,
                      std::int64_t positions) {
  std::vector<std::int64_t> change(static_cast<std::size_t>(positions) + 1, 0);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto bytes = static_cast<std::int64_t>(blocks[i].bytes);
    for (const Span& span : {pieces[i].first, pieces[i].second}) {
      if (span.end < span.begin) continue;
      change[static_cast<std::size_t>(span.begin)] += bytes;
      change[static_cast<std::size_t>(span.end) + 1] -= bytes;
    }
  }
  std::int64_t sum = 0;
  std::int64_t peak = 0;
  for (const std::int64_t delta : change) peak = std::max(peak, sum += delta);
  return static_cast<std::uint64_t>(peak);
}

/// Places blocks in the given order, each into the tightest hole between those it meets in time
/// (the lowest among equals).
void place_in_order(const std::vector<Block>& blocks, const std::vector<Piece>& pieces,
                    const std::vector<std::uint32_t>& order, Packing& out) {
  std::vector<std::uint32_t> placed;  // sorted by offset
  placed.reserve(order.size());
  out.height_bytes = 0;
  for (const std::uint32_t i : order) {
    std::uint64_t top = 0;
    std::uint64_t best = UINT64_MAX;
    std::uint64_t best_size = UINT64_MAX;
    for (const std::uint32_t j : placed) {
      const std::uint64_t low = out.offsets[j];
      if (low + blocks[j].bytes <= top || !meet(pieces[i], pieces[j])) continue;
      if (low > top && low - top >= blocks[i].bytes && low - top < best_size) {
        best = top;
        best_size = low - top;
        if (best_size == blocks[i].bytes) break;
      }
      top = std::max(top, low + blocks[j].bytes);
    }
    if (best == UINT64_MAX) best = top;
    out.offsets[i] = best;
    out.height_bytes = std::max(out.height_bytes, best + blocks[i].bytes);
    const auto at = std::upper_bound(
        placed.begin(), placed.end(), i,
        [&](std::uint32_t a, std::uint32_t b) { return out.offsets[a] < out.offsets[b]; });
    placed.insert(at, i);
  }
}

/// Free ranges of one address space that grows at the top: best fit with merging.
class FreeRanges {
 public:
  /// `low`: from the hole's bottom; else from its top.
  std::uint64_t take(std::uint64_t bytes, bool low) {
    const auto hole = by_size_.lower_bound({bytes, 0});
    if (hole == by_size_.end()) return grow(bytes);
    const auto [size, offset] = *hole;
    erase(offset, size);
    if (size == bytes) return offset;
    if (low) {
      insert(offset + bytes, size - bytes);
      return offset;
    }
    insert(offset, size - bytes);
    return offset + size - bytes;
  }
  void give(std::uint64_t offset, std::uint64_t bytes) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && next->first == offset + bytes) {
      bytes += next->second;
      erase(next->first, next->second);
      next = by_offset_.lower_bound(offset);
    }
    if (next != by_offset_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        erase(before->first, before->second);
      }
    }
    insert(offset, bytes);
  }
  [[nodiscard]] std::uint64_t top() const { return top_; }
  void start_at(std::uint64_t top) { top_ = top; }

 private:
  std::uint64_t grow(std::uint64_t bytes) {
    std::uint64_t offset = top_;
    if (!by_offset_.empty()) {
      const auto last = std::prev(by_offset_.end());
      if (last->first + last->second == top_) {
        offset = last->first;
        erase(last->first, last->second);
      }
    }
    top_ = offset + bytes;
    return offset;
  }
  void insert(std::uint64_t offset, std::uint64_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void erase(std::uint64_t offset, std::uint64_t bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }
  std::map<std::uint64_t, std::uint64_t> by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
  std::uint64_t top_ = 0;
};

/// One pass over time. Blocks that span the step's end are stacked at the bottom and keep their
/// bytes to themselves.
void place_by_sweep(const std::vector<Block>& blocks, const std::vector<Piece>& pieces,
                    std::int64_t positions, Packing& out) {
  const auto n = static_cast<std::size_t>(positions);
  std::vector<std::vector<std::uint32_t>> begins(n);
  std::vector<std::vector<std::uint32_t>> ends(n);
  FreeRanges ranges;
  std::uint64_t bottom = 0;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.second.end >= 0 || (piece.first.begin == 0 && piece.first.end == positions - 1)) {
      out.offsets[i] = bottom;
      bottom += blocks[i].bytes;
    } else {
      begins[static_cast<std::size_t>(piece.first.begin)].push_back(i);
      ends[static_cast<std::size_t>(piece.first.end)].push_back(i);
    }
  }
  ranges.start_at(bottom);
  for (std::size_t p = 0; p < n; ++p) {
    auto& starting = begins[p];
    std::stable_sort(starting.begin(), starting.end(), [&](std::uint32_t a, std::uint32_t b) {
      return blocks[a].bytes > blocks[b].bytes;
    });
    for (const std::uint32_t i : starting) {
      const bool low = blocks[i].end - blocks[i].begin > positions / 64;
      out.offsets[i] = ranges.take(blocks[i].bytes, low);
    }
    for (const std::uint32_t i : ends[p]) ranges.give(out.offsets[i], blocks[i].bytes);
  }
  out.height_bytes = ranges.top();
}

using Less = bool (*)(const Block&, const Block&);

std::vector<std::uint32_t> ordered(const std::vector<Block>& blocks, Less less) {
  std::vector<std::uint32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return less(blocks[a], blocks[b]); });
  return order;
}

std::int64_t length(const Block& block) { return block.end - block.begin + 1; }

}  // namespace

Packing pack(const std::vector<Block>& blocks, std::int64_t positions, std::uint64_t enough_bytes) {
  Packing best;
  best.offsets.assign(blocks.size(), 0);
  if (blocks.empty()) return best;
  std::vector<Piece> pieces;
  pieces.reserve(blocks.size());
  for (const Block& block : blocks) pieces.push_back(piece_of(block, positions));
  best.load_bytes = load_of(blocks, pieces, positions);
  if (blocks.size() > kCarefulBlocks) {
    place_by_sweep(blocks, pieces, positions, best);
    return best;
  }
  static constexpr Less kOrders[] = {
      [](const Block& a, const Block& b) {
        return std::pair(b.bytes, length(b)) < std::pair(a.bytes, length(a));
      },
      [](const Block& a, const Block& b) {
        return static_cast<double>(a.bytes) * static_cast<double>(length(a)) >
               static_cast<double>(b.bytes) * static_cast<double>(length(b));
      },
      [](const Block& a, const Block& b) {
        return std::pair(length(b), b.bytes) < std::pair(length(a), a.bytes);
      },
      [](const Block& a, const Block& b) { return a.begin < b.begin; },
  };
  bool first = true;
  for (const Less less : kOrders) {
    Packing next = best;
    place_in_order(blocks, pieces, ordered(blocks, less), next);
    if (first || next.height_bytes < best.height_bytes) best = std::move(next);
    first = false;
    if (best.height_bytes <= std::min(enough_bytes, best.load_bytes + best.load_bytes / 100)) break;
  }
  HO_CHECK(best.height_bytes >= best.load_bytes);
  return best;
}

}  // namespace ho::analyzer
