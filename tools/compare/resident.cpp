#include "tools/compare/resident.hpp"

#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/instance.hpp"
#include "tools/analyzer/packing/solve.hpp"
#include "tools/analyzer/problem/liveness.hpp"

namespace ho::gpt {

Layout pack_resident(const Graph& graph) {
  const std::vector<analyzer::OpSpan> spans = analyzer::spans_of(graph);
  std::vector<packing::Lifetime> lives;
  for (std::size_t s = 0; s < spans.size(); ++s) {
    const Storage& about = graph.storages[s];
    const bool early = about.persistent || about.kind == StorageKind::kInput;
    const auto [first, last] = spans[s];
    lives.push_back(
        {early ? 0 : std::min(first, last),
         about.persistent ? static_cast<std::int64_t>(graph.ops.size()) : last + std::int64_t{1},
         static_cast<std::int64_t>(align_up(about.bytes, 64))});
  }
  packing::Budget budget(1'000'000'000);  // about a second
  const packing::Solution packed = packing::solve(lives, 0, {INT64_MAX, 1.01}, budget);
  return {{packed.offsets.begin(), packed.offsets.end()},
          static_cast<std::uint64_t>(packed.height_bytes)};
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
