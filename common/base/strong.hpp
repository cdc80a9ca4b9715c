#pragma once

#include <compare>
#include <cstddef>
#include <functional>

namespace ho {

/// An integer with one meaning. Supports equality and order only; converts only explicitly.
template <typename Tag, typename Integer>
class Strong {
 public:
  using Underlying = Integer;

  constexpr Strong() = default;
  constexpr explicit Strong(Integer value) : value_(value) {}

  [[nodiscard]] constexpr Integer value() const { return value_; }
  constexpr auto operator<=>(const Strong&) const = default;

 private:
  Integer value_{};
};

}  // namespace ho

template <typename Tag, typename Integer>
struct std::hash<ho::Strong<Tag, Integer>> {
  std::size_t operator()(const ho::Strong<Tag, Integer>& strong) const noexcept {
    return std::hash<Integer>{}(strong.value());
  }
};
