#include "tools/analyzer/problem/slack_tree.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace ho::analyzer {
namespace {

/// Beyond the last position: more than any value, and far from overflow.
constexpr std::int64_t kMore = std::numeric_limits<std::int64_t>::max() / 4;

}  // namespace

SlackTree::SlackTree(const std::vector<std::int64_t>& values)
    : size_(values.size()), leaves_(std::bit_ceil(values.size())), nodes_(leaves_ * 2) {
  HO_CHECK(size_ > 0);
  for (std::size_t i = 0; i < leaves_; ++i) nodes_[leaves_ + i].min = i < size_ ? values[i] : kMore;
  for (std::size_t node = leaves_; --node > 0;) update(node);
}

void SlackTree::update(std::size_t node) {
  nodes_[node].min = std::min(nodes_[node * 2].min, nodes_[node * 2 + 1].min) + nodes_[node].added;
}

// Both walk from two leaves to the root, with no recursion: planning spends much of its time here.

void SlackTree::add(std::int64_t first, std::int64_t last, std::int64_t delta) {
  if (first > last) return;
  std::size_t low = leaf(first);
  std::size_t high = leaf(last);
  const auto apply = [&](std::size_t node) {
    nodes_[node].min += delta;
    nodes_[node].added += delta;
  };
  apply(low);
  if (low != high) apply(high);
  while (low > 1) {
    if (low / 2 != high / 2) {
      if (low % 2 == 0) apply(low + 1);
      if (high % 2 == 1) apply(high - 1);
    }
    low /= 2;
    high /= 2;
    update(low);
    if (low != high) update(high);
  }
}

std::int64_t SlackTree::min(std::int64_t first, std::int64_t last) const {
  if (first > last) return std::numeric_limits<std::int64_t>::max();
  std::size_t low = leaf(first);
  std::size_t high = leaf(last);
  std::int64_t left = nodes_[low].min;
  std::int64_t right = nodes_[high].min;
  while (low / 2 != high / 2) {
    if (low % 2 == 0) left = std::min(left, nodes_[low + 1].min);
    if (high % 2 == 1) right = std::min(right, nodes_[high - 1].min);
    low /= 2;
    high /= 2;
    left += nodes_[low].added;
    right += nodes_[high].added;
  }
  std::int64_t least = std::min(left, right);
  while ((low /= 2) > 0) least += nodes_[low].added;
  return least;
}

std::int64_t SlackTree::last_below(std::int64_t first, std::int64_t last,
                                   std::int64_t threshold) const {
  if (first > last) return first - 1;
  HO_CHECK(first >= 0 && last < static_cast<std::int64_t>(size_));
  return last_below(1, 0, static_cast<std::int64_t>(leaves_) - 1, first, last, threshold);
}

std::int64_t SlackTree::last_below(std::size_t node, std::int64_t low, std::int64_t high,
                                   std::int64_t first, std::int64_t last,
                                   std::int64_t threshold) const {
  if (last < low || high < first || nodes_[node].min >= threshold) return first - 1;
  if (low == high) return low;
  const std::int64_t middle = (low + high) / 2;
  const std::int64_t inner = threshold - nodes_[node].added;
  const std::int64_t right = last_below(node * 2 + 1, middle + 1, high, first, last, inner);
  if (right >= first) return right;
  return last_below(node * 2, low, middle, first, last, inner);
}

}  // namespace ho::analyzer
