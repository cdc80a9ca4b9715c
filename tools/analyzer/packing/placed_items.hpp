#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/instance.hpp"
#include "tools/analyzer/packing/neighbours.hpp"

namespace ho::packing {

/// Offsets of items, and the placed ones that share a section with another.
///
/// Where items share sections with many others, all placed ones are kept in the order of their
/// offsets: walking them is faster than sorting the neighbours of each item.
class PlacedItems {
 public:
  /// The bytes of a placed item.
  struct Taken {
    std::int64_t low = 0;
    std::int64_t top = 0;
    std::uint32_t item = 0;
  };

  /// @param instance, neighbours  must outlive this object
  /// @param offsets               per item; -1: not placed
  PlacedItems(const Instance& instance, const Neighbours& neighbours,
              std::vector<std::int64_t> offsets);

  /// The item is not placed, and the offset not negative.
  void add(std::uint32_t item, std::int64_t offset);
  /// The item is placed.
  void remove(std::uint32_t item);
  /// Per item; -1: not placed.
  [[nodiscard]] const std::vector<std::int64_t>& offsets() const { return offsets_; }

  /// Calls visit(taken) for each placed item that shares a section with `item`, the lowest offset
  /// first, until it returns false. `item` is not placed. @return the work, for a Budget.
  template <typename Visit>
  std::uint64_t around(std::uint32_t item, Visit visit) {
    if (dense_) return among_all(items()[item], visit);
    std::uint64_t seen = 8;
    found_.clear();
    neighbours_.each(item, [&](std::uint32_t j) {
      ++seen;
      if (offsets_[j] >= 0) found_.push_back(taken(j));
    });
    std::sort(found_.begin(), found_.end(),
              [](const Taken& a, const Taken& b) { return a.low < b.low; });
    for (const Taken& each : found_) {
      if (!visit(each)) break;
    }
    return 2 * seen + found_.size() * static_cast<std::uint64_t>(std::bit_width(found_.size()));
  }

 private:
  static constexpr std::size_t kChunkMax = 256;
  /// The sections of an item. A second range begins at section 0.
  struct Life {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::uint32_t second_end = 0;
  };
  /// Placed items in the order of their offsets.
  struct Chunk {
    std::vector<std::uint32_t> items;
    std::vector<std::int64_t> lows;  ///< parallel
    std::vector<Life> lives;         ///< parallel
  };

  [[nodiscard]] Taken taken(std::uint32_t item) const {
    return {offsets_[item], offsets_[item] + items()[item].bytes, item};
  }
  template <typename Visit>
  std::uint64_t among_all(const Item& asked, Visit& visit) const {
    const std::uint64_t work = 100 + 2 * count_;
    std::uint32_t found[kChunkMax];
    for (const Chunk& chunk : chunks_) {
      // Without a branch on each, which no processor predicts.
      std::size_t count = 0;
      for (std::uint32_t i = 0; i < chunk.items.size(); ++i) {
        found[count] = i;
        count += asked.wrapped() ? static_cast<unsigned>(meet(asked, items()[chunk.items[i]]))
                                 : meets(chunk.lives[i], asked.first.begin, asked.first.end);
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (!visit(taken(chunk.items[found[i]]))) return work;
      }
    }
    return work;
  }
  static unsigned meets(const Life& life, std::uint32_t begin, std::uint32_t end) {
    const auto is_less = [](std::uint32_t a, std::uint32_t b) { return a < b ? 1U : 0U; };
    return (is_less(begin, life.end) & is_less(life.begin, end)) | is_less(begin, life.second_end);
  }
  [[nodiscard]] const std::vector<Item>& items() const { return instance_.items; }
  [[nodiscard]] std::vector<Chunk>::iterator chunk_of(std::int64_t low);
  void insert(std::uint32_t item);

  const Instance& instance_;
  const Neighbours& neighbours_;
  const bool dense_;
  std::vector<std::int64_t> offsets_;
  std::uint64_t count_ = 0;    ///< items in `chunks_`
  std::vector<Chunk> chunks_;  ///< none is empty; none without `dense_`
  std::vector<Taken> found_;   ///< scratch
};

}  // namespace ho::packing
