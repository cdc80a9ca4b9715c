#include "tools/analyzer/packing/placed_items.hpp"

#include <utility>

#include "common/base/check.hpp"

namespace ho::packing {
namespace {

const auto kBelow = [](std::int64_t low, const PlacedItems::Taken& each) { return low < each.low; };

}  // namespace

PlacedItems::PlacedItems(const Instance& instance, const Neighbours& neighbours,
                         std::vector<std::int64_t> offsets)
    : instance_(instance),
      neighbours_(neighbours),
      dense_(neighbours.dense()),
      offsets_(std::move(offsets)) {
  HO_CHECK(offsets_.size() == instance.items.size());
  for (std::uint32_t i = 0; i < offsets_.size() && dense_; ++i) {
    if (offsets_[i] >= 0) insert(taken(i));
  }
}

void PlacedItems::add(std::uint32_t item, std::int64_t offset) {
  HO_CHECK(offsets_[item] < 0 && offset >= 0);
  offsets_[item] = offset;
  if (dense_) insert(taken(item));
}

void PlacedItems::remove(std::uint32_t item) {
  HO_CHECK(offsets_[item] >= 0);
  const std::int64_t low = std::exchange(offsets_[item], -1);
  if (!dense_) return;
  // From the last entry with its offset on, downwards: there may be some in several chunks.
  auto chunk = chunk_of(low);
  auto at = std::upper_bound(chunk->taken.begin(), chunk->taken.end(), low, kBelow);
  for (;;) {
    if (at == chunk->taken.begin()) {
      HO_CHECK(chunk != chunks_.begin());
      at = (--chunk)->taken.end();
    }
    --at;
    HO_CHECK(at->low == low);
    if (at->item == item) break;
  }
  chunk->items.erase(chunk->items.begin() + (at - chunk->taken.begin()));
  chunk->taken.erase(at);
  --count_;
  if (chunk->taken.empty()) chunks_.erase(chunk);
}

/// The last chunk that begins at `low` or below, else the first. There is one.
std::vector<PlacedItems::Chunk>::iterator PlacedItems::chunk_of(std::int64_t low) {
  const auto next = std::upper_bound(
      chunks_.begin(), chunks_.end(), low,
      [](std::int64_t at, const Chunk& each) { return kBelow(at, each.taken.front()); });
  return next == chunks_.begin() ? next : next - 1;
}

void PlacedItems::insert(const Taken& entry) {
  ++count_;
  if (chunks_.empty()) {
    chunks_.push_back({{entry}, {instance_.items[entry.item]}});
    return;
  }
  const auto chunk = chunk_of(entry.low);
  const auto at = std::upper_bound(chunk->taken.begin(), chunk->taken.end(), entry.low, kBelow);
  chunk->items.insert(chunk->items.begin() + (at - chunk->taken.begin()),
                      instance_.items[entry.item]);
  chunk->taken.insert(at, entry);
  if (chunk->taken.size() <= kChunkMax) return;
  constexpr auto kHalf = static_cast<std::ptrdiff_t>(kChunkMax / 2);
  Chunk upper{{chunk->taken.begin() + kHalf, chunk->taken.end()},
              {chunk->items.begin() + kHalf, chunk->items.end()}};
  chunk->taken.resize(kChunkMax / 2);
  chunk->items.resize(kChunkMax / 2);
  chunks_.insert(chunk + 1, std::move(upper));
}

}  // namespace ho::packing
