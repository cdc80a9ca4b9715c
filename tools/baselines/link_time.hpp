#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ho::analyzer {

/// Free time of one direction of a link, in slots: slot 2p is the stall before position p (empty
/// unless the plan needs one), slot 2p + 1 is op p itself. Transfers are fluid within slots.
/// Cyclic: slot indices may lie in a lap before or after. Every query takes O(log n), a walk
/// through a block of kBlock slots, and a step for each lap that an index is away; booking the same
/// for each slot that it takes from.
class LinkTime {
 public:
  /// @param free_ns  per slot.
  explicit LinkTime(const std::vector<std::int64_t>& free_ns);

  /// Free time in slots [first, last], at most one lap apart; 0 where first > last.
  [[nodiscard]] std::int64_t free_between(std::int64_t first, std::int64_t last) const;
  struct Booking {
    std::int64_t first_slot = 0;
    std::int64_t last_slot = 0;
  };
  enum class Slots : std::uint8_t { kEarliest, kLatest };
  /// Takes `time_ns` from free slots in [first, last], which must have it.
  Booking book(std::int64_t first, std::int64_t last, std::int64_t time_ns, Slots from);

 private:
  std::int64_t to_lap(std::int64_t& slot) const;  // makes it one of [0, slots). @return its lap
  [[nodiscard]] std::int64_t prefix(std::int64_t slot) const;      // sum of [0, slot)
  [[nodiscard]] std::int64_t cumulative(std::int64_t slot) const;  // the same over laps
  [[nodiscard]] std::int64_t locate(std::int64_t target) const;
  void change(std::int64_t slot, std::int64_t delta);

  [[nodiscard]] std::int64_t sum(std::size_t first, std::size_t end) const;  // within a block

  /// Slots are summed up one by one within a block, blocks by a tree: it stays in the cache.
  static constexpr std::size_t kBlock = 32;

  std::int64_t slots_;
  std::int64_t total_ = 0;
  std::vector<std::int64_t> free_;  // whole blocks
  std::vector<std::int64_t> tree_;  // over blocks
};

}  // namespace ho::analyzer
