#include "tools/analyzer/packing/placed_items.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.hpp"

namespace ho::packing {

PlacedItems::PlacedItems(const Instance& instance, const Neighbours& neighbours,
                         std::vector<std::int64_t> offsets)
    : instance_(instance),
      neighbours_(neighbours),
      dense_(neighbours.dense()),
      offsets_(std::move(offsets)) {
  HO_CHECK(offsets_.size() == instance.items.size());
  for (std::uint32_t i = 0; i < offsets_.size() && dense_; ++i) {
    if (offsets_[i] >= 0) insert(i);
  }
}

void PlacedItems::add(std::uint32_t item, std::int64_t offset) {
  HO_CHECK(offsets_[item] < 0 && offset >= 0);
  offsets_[item] = offset;
  if (dense_) insert(item);
}

void PlacedItems::remove(std::uint32_t item) {
  HO_CHECK(offsets_[item] >= 0);
  const std::int64_t low = std::exchange(offsets_[item], -1);
  if (!dense_) return;
  // From the last entry with its offset on, downwards: there may be some in several chunks.
  auto chunk = chunk_of(low);
  auto at = std::upper_bound(chunk->lows.begin(), chunk->lows.end(), low) - chunk->lows.begin();
  for (;;) {
    if (at == 0) {
      HO_CHECK(chunk != chunks_.begin());
      --chunk;
      at = std::ssize(chunk->items);
    }
    --at;
    HO_CHECK(chunk->lows[static_cast<std::size_t>(at)] == low);
    if (chunk->items[static_cast<std::size_t>(at)] == item) break;
  }
  chunk->items.erase(chunk->items.begin() + at);
  chunk->lows.erase(chunk->lows.begin() + at);
  chunk->lives.erase(chunk->lives.begin() + at);
  --count_;
  if (chunk->items.empty()) chunks_.erase(chunk);
}

/// The last chunk that begins at `low` or below, else the first. There is one.
std::vector<PlacedItems::Chunk>::iterator PlacedItems::chunk_of(std::int64_t low) {
  const auto next =
      std::upper_bound(chunks_.begin(), chunks_.end(), low,
                       [](std::int64_t at, const Chunk& each) { return at < each.lows.front(); });
  return next == chunks_.begin() ? next : next - 1;
}

void PlacedItems::insert(std::uint32_t item) {
  const std::int64_t low = offsets_[item];
  const Item& all = items()[item];
  const Life life{all.first.begin, all.first.end, all.second.end};
  ++count_;
  if (chunks_.empty()) {
    chunks_.push_back({{item}, {low}, {life}});
    return;
  }
  const auto chunk = chunk_of(low);
  const auto at =
      std::upper_bound(chunk->lows.begin(), chunk->lows.end(), low) - chunk->lows.begin();
  chunk->items.insert(chunk->items.begin() + at, item);
  chunk->lows.insert(chunk->lows.begin() + at, low);
  chunk->lives.insert(chunk->lives.begin() + at, life);
  if (chunk->items.size() <= kChunkMax) return;
  constexpr auto kHalf = static_cast<std::ptrdiff_t>(kChunkMax / 2);
  Chunk upper{{chunk->items.begin() + kHalf, chunk->items.end()},
              {chunk->lows.begin() + kHalf, chunk->lows.end()},
              {chunk->lives.begin() + kHalf, chunk->lives.end()}};
  chunk->items.resize(kChunkMax / 2);
  chunk->lows.resize(kChunkMax / 2);
  chunk->lives.resize(kChunkMax / 2);
  chunks_.insert(chunk + 1, std::move(upper));
}

}  // namespace ho::packing
