#include "tools/analyzer/packing/neighbours.hpp"

#include <algorithm>

namespace ho::packing {

Neighbours::Neighbours(const Instance& instance) : instance_(instance) {
  const std::vector<Item>& items = instance.items;
  std::vector<std::uint32_t> begun(std::size_t{instance.sections} + 1, 0);
  std::vector<std::uint32_t> ended(std::size_t{instance.sections} + 1, 0);
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    if (items[i].wrapped()) wrapped_.push_back(i);
    ++begun[items[i].first.begin];
    ++ended[items[i].first.end];
  }
  std::uint64_t alive = 0;
  std::uint64_t alive_max = 1;
  for (std::uint32_t s = 0; s < instance.sections; ++s) {
    alive -= ended[s];
    pairs_ += std::uint64_t{begun[s]} * alive + std::uint64_t{begun[s]} * begun[s] / 2;
    alive += begun[s];
    alive_max = std::max(alive_max, alive);
  }
  const std::size_t entries = items.size() * alive_max;
  stride_ = static_cast<std::uint32_t>(std::max<std::size_t>(32, entries / kEntriesMax + 1));
  std::vector<std::uint32_t> now;
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    if (i % stride_ == 0) {
      const std::uint32_t begin = items[i].first.begin;
      std::erase_if(now, [&](std::uint32_t j) { return items[j].first.end <= begin; });
      alive_begin_.push_back(static_cast<std::uint32_t>(alive_.size()));
      alive_.insert(alive_.end(), now.begin(), now.end());
    }
    if (!items[i].wrapped()) now.push_back(i);
  }
  alive_begin_.push_back(static_cast<std::uint32_t>(alive_.size()));
}

}  // namespace ho::packing
