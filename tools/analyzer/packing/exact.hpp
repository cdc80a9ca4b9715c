#pragma once

#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/instance.hpp"

namespace ho::packing {

enum class Outcome : std::uint8_t {
  kFound,
  kNone,     ///< all was searched. States are compared by 64-bit hashes, so this is almost certain
  kStopped,  ///< the node limit was reached
};

/// Depth-first search for offsets within a capacity; complete if it has enough time. For up to
/// kItemsMax items.
///
/// Places items from the bottom up, each on the highest top end beneath it. Considers only packings
/// in which no item can sink, and no two stacked items of equal lifetime could swap for a smaller
/// sum of offsets. If any packing exists, one of these does.
///
/// The rules that follow: an item that was skipped at its offset stays barred until another item is
/// placed beneath it. An item is not placed at or above the top end that another, unplaced item
/// would have now. In each section, the unplaced items stacked from their lowest offsets must end
/// within the capacity. Unplaced items that no longer share a section are searched separately.
/// Failed states are remembered, also across runs.
class ExactSearch {
 public:
  static constexpr std::size_t kItemsMax = 4096;

  /// `instance` must outlive the search.
  explicit ExactSearch(const Instance& instance);

  /// Clears the failed states if the capacity changes.
  void set_capacity(std::int64_t capacity_bytes);

  /// What a node tries first.
  enum class Prefer : std::uint8_t {
    kLowest,  ///< the lowest offset, then the order
    kOrder,
  };

  /// Runs one search. Among items that could begin at one offset, it places those early in `order`
  /// first. Deterministic. Each node costs O(items + sum of their sections).
  [[nodiscard]] Outcome run(const std::vector<std::uint32_t>& order, Prefer prefer,
                            std::uint64_t nodes_max);

  /// Valid after kFound.
  [[nodiscard]] const std::vector<std::int64_t>& offsets() const { return offsets_; }
  [[nodiscard]] std::uint64_t nodes() const { return nodes_; }

 private:
  struct Change {
    std::uint32_t item;
    std::int32_t real;
    bool barred;
  };
  struct Entry {
    std::uint32_t item;
    std::int32_t least;  ///< lower bound of its offset
  };
  struct Frame {
    std::vector<Entry> items;
    std::vector<std::uint32_t> candidates;
  };

  Outcome descend(std::size_t depth, std::int32_t last);
  Outcome branch(std::size_t depth, std::int32_t last, std::uint64_t key);
  Outcome descend_split(std::size_t depth, std::int32_t last);
  bool bound(Frame& here, std::int32_t last);
  [[nodiscard]] std::int32_t lowest_top_beneath(std::uint32_t item, std::int32_t last) const;
  [[nodiscard]] bool stacks_fit(const std::vector<Entry>& items);
  [[nodiscard]] std::size_t find_groups(const std::vector<Entry>& items);
  [[nodiscard]] std::uint64_t key_of(const std::vector<Entry>& items, std::int32_t last) const;
  void remember_failed(std::uint64_t key);
  void list_candidates(Frame& frame);
  void place(std::uint32_t item, const std::vector<Entry>& others);
  void undo_to(std::size_t changes, std::size_t placed);
  void add_remaining(std::uint32_t item, std::int32_t bytes);
  Frame& frame(std::size_t depth);
  [[nodiscard]] bool adjacent(std::uint32_t a, std::uint32_t b) const {
    return (meets_[a * words_ + b / 64] >> (b % 64) & 1U) != 0;
  }

  const Instance& instance_;
  std::size_t words_;
  std::int64_t unit_ = 1;  ///< unit of sizes, rounded up, so that they fit 30 bits
  std::int32_t capacity_ = 0;
  std::int64_t capacity_bytes_ = -1;
  std::vector<std::int32_t> size_;
  std::vector<std::uint64_t> meets_;       ///< bit matrix
  std::vector<std::uint32_t> neighbours_;  ///< neighbours of each item, by size
  std::vector<std::uint32_t> neighbours_begin_;
  std::vector<std::uint32_t> lifetime_;  ///< equal for equal lifetimes
  std::vector<std::uint64_t> salt_;      ///< per item, for hash keys
  std::vector<std::uint32_t> rank_;      ///< index in the order of this run
  std::vector<std::uint32_t>
      twin_;                        ///< an equal item that must be placed first, or the item itself
  std::vector<std::int32_t> real_;  ///< of unplaced items: the highest top end beneath
  std::vector<Entry> raised_;       ///< scratch
  std::vector<std::uint8_t> barred_;
  std::vector<std::uint8_t> placed_;
  std::vector<std::int32_t> remaining_;  ///< per section
  std::vector<std::int32_t> stack_;      ///< per section, scratch
  std::vector<std::int32_t> crossing_;   ///< per section, scratch
  std::vector<std::uint32_t> group_;     ///< per section, scratch
  std::uint32_t group_here_ = 0;         ///< of the first item that find_groups() saw
  std::vector<Change> changes_;
  std::vector<std::uint32_t> placed_order_;
  std::vector<Frame> frames_;
  std::vector<std::uint64_t> failed_;  ///< direct-mapped set of keys
  std::size_t failures_ = 0;           ///< number of entries since the set was empty
  std::vector<std::int64_t> offsets_;
  Prefer prefer_ = Prefer::kLowest;
  std::uint64_t nodes_ = 0;
  std::uint64_t nodes_max_ = 0;
};

}  // namespace ho::packing
