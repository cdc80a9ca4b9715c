#pragma once

#include <algorithm>
#include <iterator>

namespace ho {

/// Whether a short list has a value; looks at one after the other.
template <typename List, typename Value>
[[nodiscard]] bool contains(const List& list, const Value& value) {
  return std::find(std::begin(list), std::end(list), value) != std::end(list);
}

}  // namespace ho
