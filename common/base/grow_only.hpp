#pragma once

#include <atomic>
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.hpp"

namespace ho {

/// A list whose elements stay where they are, and to which one thread may append while others read.
/// A thread that sees an element's index in size() sees the element as it was appended. Appends
/// must not overlap each other.
template <typename T>
class GrowOnly {
 public:
  /// @param size_max  elements at most: it holds a pointer for each.
  explicit GrowOnly(std::size_t size_max) : slots_(size_max) {}
  GrowOnly(const GrowOnly&) = delete;
  GrowOnly& operator=(const GrowOnly&) = delete;
  ~GrowOnly() = default;

  [[nodiscard]] std::size_t size() const { return size_.load(std::memory_order_acquire); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] const T& operator[](std::size_t index) const { return *slots_[index]; }
  [[nodiscard]] T& operator[](std::size_t index) { return *slots_[index]; }

  void push_back(T value) {
    const std::size_t at = size();
    HO_CHECK(at < slots_.size());
    slots_[at] = std::make_unique<T>(std::move(value));
    size_.store(at + 1, std::memory_order_release);
  }

  template <typename List, typename Element>
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = Element*;
    using reference = Element&;

    Iterator() = default;
    Iterator(List& list, std::size_t at) : list_(&list), at_(at) {}
    [[nodiscard]] reference operator*() const { return (*list_)[at_]; }
    [[nodiscard]] pointer operator->() const { return &(*list_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++at_;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    List* list_ = nullptr;
    std::size_t at_ = 0;
  };
  /// The elements that there are when end() is called.
  [[nodiscard]] auto begin() const { return Iterator<const GrowOnly, const T>(*this, 0); }
  [[nodiscard]] auto end() const { return Iterator<const GrowOnly, const T>(*this, size()); }
  [[nodiscard]] auto begin() { return Iterator<GrowOnly, T>(*this, 0); }
  [[nodiscard]] auto end() { return Iterator<GrowOnly, T>(*this, size()); }

 private:
  std::vector<std::unique_ptr<T>> slots_;
  std::atomic<std::size_t> size_{0};
};

}  // namespace ho
