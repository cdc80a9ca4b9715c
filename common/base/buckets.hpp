#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ho {

/// Lists of small integers by key, in one block (say, a schedule's dependencies turned round). A
/// value. Within a key, values keep the order of the entries. Keys are below `keys`.
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

/// Lists of small integers by key that are added to as they are used; a value is in one list at a
/// time, and is added again only once its list has been visited. Two integers a value and key, no
/// allocation after the first. A value.
class Chains {
 public:
  Chains() = default;
  Chains(std::size_t keys, std::size_t values) : first_(keys, kEnd), next_(values, kEnd) {}

  /// In front of what the list has.
  void add(std::size_t key, std::uint32_t value) {
    next_[value] = first_[key];
    first_[key] = value;
  }
  /// Calls visit(value) for all of one list, the last added first. It may add the value to another
  /// list, which ends this one: no list is visited again once one of its values is in another.
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
