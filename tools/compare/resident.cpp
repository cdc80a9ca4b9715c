#include "tools/compare/resident.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::gpt {
namespace {

/// Ops [first, last] during which a storage's bytes are taken.
struct Life {
  std::size_t first = SIZE_MAX;
  std::size_t last = 0;
};

std::vector<Life> lives_of(const Graph& graph) {
  std::vector<Life> lives(graph.storages.size());
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    for (const auto* list : {&graph.ops[o].reads, &graph.ops[o].writes}) {
      for (const StorageIndex s : *list) {
        Life& life = lives[s.value()];
        life.first = std::min(life.first, o);
        life.last = std::max(life.last, o);
      }
    }
  }
  for (std::size_t s = 0; s < lives.size(); ++s) {
    const Storage& about = graph.storages[s];
    if (about.persistent || about.kind == StorageKind::kInput) lives[s].first = 0;
    if (about.persistent) lives[s].last = graph.ops.size();
  }
  return lives;
}

}  // namespace

Layout pack_resident(const Graph& graph) {
  const std::vector<Life> lives = lives_of(graph);
  std::vector<std::size_t> order(graph.storages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Storage& x = graph.storages[a];
    const Storage& y = graph.storages[b];
    if (x.persistent != y.persistent) return x.persistent;  // no holes below those that stay
    return x.bytes > y.bytes;
  });
  Layout layout;
  layout.offset_bytes.assign(graph.storages.size(), 0);
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t s : order) {
    const std::uint64_t bytes = align_up(graph.storages[s].bytes, 64);
    std::uint64_t at = 0;
    for (const std::size_t other : placed) {
      if (lives[other].first > lives[s].last || lives[s].first > lives[other].last) continue;
      const std::uint64_t begin = layout.offset_bytes[other];
      if (begin >= at + bytes) break;
      at = std::max(at, begin + align_up(graph.storages[other].bytes, 64));
    }
    layout.offset_bytes[s] = at;
    layout.bytes = std::max(layout.bytes, at + bytes);
    const auto place = std::upper_bound(
        placed.begin(), placed.end(), at,
        [&](std::uint64_t value, std::size_t o) { return value < layout.offset_bytes[o]; });
    placed.insert(place, s);
  }
  return layout;
}

LargestOp largest_op(const Model& model) {
  LargestOp largest;
  for (std::size_t o = 0; o < model.ops.size(); ++o) {
    std::uint64_t bytes = 0;
    for (const StorageIndex s : model.ops[o].operands) {
      bytes += align_up(model.graph.storages[s.value()].bytes, 64);
    }
    if (bytes > largest.bytes) {
      largest = LargestOp{OpIndex(static_cast<std::uint32_t>(o)), bytes};
    }
  }
  return largest;
}

Result<std::unique_ptr<Resident>> Resident::create(const Model& model) {
  Layout layout = pack_resident(model.graph);
  auto arena = Arena::create(layout.bytes);
  if (!arena) return arena.error();
  return std::unique_ptr<Resident>(
      new Resident(model, std::move(layout), std::move(arena).value()));
}

std::uint32_t Resident::position_count() const {
  return static_cast<std::uint32_t>(model_.ops.size());
}

Result<void> Resident::fill(StorageIndex storage, std::span<const std::byte> value) {
  HO_CHECK(value.size() == model_.graph.storages.at(storage.value()).bytes);
  std::memcpy(operand(0, storage), value.data(), value.size());
  return {};
}

void* Resident::operand(std::uint32_t, StorageIndex storage) {
  return arena_->data() + layout_.offset_bytes[storage.value()];
}

Result<Usage> Resident::usage() const {
  Usage usage;
  usage.peak_device_bytes = layout_.bytes;
  return usage;
}

}  // namespace ho::gpt
