#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ho {

/// Lists of small integers, one list per key, stored in one array; for example a schedule's
/// dependencies in reverse. A value. Keys are below `keys`. A list keeps the order of its entries.
class Buckets {
 public:
  Buckets() = default;
  Buckets(std::size_t keys, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& entries)
      : first_(keys + 1, 0), values_(entries.size()) {
    for (const auto& [key, value] : entries) ++first_[key + 1];
    for (std::size_t k = 0; k < keys; ++k) first_[k + 1] += first_[k];
    std::vector<std::uint32_t> fill(first_.begin(), first_.end() - 1);
    for (const auto& [key, value] : entries) values_[fill[key]++] = value;
  }
  [[nodiscard]] const std::uint32_t* begin(std::uint32_t key) const {
    return values_.data() + first_[key];
  }
  [[nodiscard]] const std::uint32_t* end(std::uint32_t key) const {
    return values_.data() + first_[key + 1];
  }

 private:
  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> values_;
};

/// Lists of small integers, one list per key, that grow and are emptied while they are used. A
/// value is in one list at a time; add it again only after its list was visited. Stores one integer
/// per key and one per value, and allocates in the constructor only. A value type.
class Chains {
 public:
  Chains() = default;
  Chains(std::size_t keys, std::size_t values) : first_(keys, kEnd), next_(values, kEnd) {}

  /// Puts `value` at the front of the list.
  void add(std::size_t key, std::uint32_t value) {
    next_[value] = first_[key];
    first_[key] = value;
  }
  /// Calls visit(value) for each value of one list, the last added first. `visit` may add the value
  /// to another list. That ends this list: do not visit it again.
  template <typename Visit>
  void for_each(std::size_t key, Visit&& visit) const {
    for (std::uint32_t value = first_[key]; value != kEnd;) {
      const std::uint32_t next = next_[value];
      visit(value);
      value = next;
    }
  }

 private:
  static constexpr std::uint32_t kEnd = UINT32_MAX;

  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> next_;
};

}  // namespace ho
