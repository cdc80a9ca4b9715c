#include "tools/models/graph_builder.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.hpp"

namespace ho::models {

std::uint64_t product(std::initializer_list<std::uint64_t> factors) {
  std::uint64_t result = 1;
  for (const std::uint64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) return std::uint64_t{1} << 63U;
  }
  return result;
}

GraphBuilder::GraphBuilder(std::string name, double flops_per_s, double bytes_per_s)
    : flops_per_s_(flops_per_s), bytes_per_s_(bytes_per_s) {
  HO_CHECK(flops_per_s > 0 && bytes_per_s > 0);
  graph_.name = std::move(name);
}

StorageIndex GraphBuilder::add_storage(std::string name, std::uint64_t bytes, StorageKind kind,
                                       bool persistent) {
  Storage storage;
  storage.id = static_cast<std::uint32_t>(graph_.storages.size());
  storage.name = std::move(name);
  storage.bytes = bytes;
  storage.kind = kind;
  storage.persistent = persistent;
  graph_.storages.push_back(std::move(storage));
  return StorageIndex(graph_.storages.back().id);
}

void GraphBuilder::add_op(std::string name, const Work& work) {
  double touched = -static_cast<double>(work.untouched_bytes);
  for (const auto* list : {&work.reads, &work.writes}) {
    for (const StorageIndex storage : *list) touched += static_cast<double>(bytes(storage));
  }
  add(std::move(name), std::max(work.flops / flops_per_s_, touched / bytes_per_s_), work.reads,
      work.writes);
}

void GraphBuilder::add_collective(std::string name, std::string group, double seconds,
                                  std::vector<StorageIndex> storages) {
  add(std::move(name), seconds, storages, storages);
  graph_.ops.back().group = std::move(group);
  graph_.ops.back().fixed = true;
}

void GraphBuilder::add(std::string name, double seconds, std::vector<StorageIndex> reads,
                       std::vector<StorageIndex> writes) {
  Op op;
  op.id = static_cast<std::uint32_t>(graph_.ops.size());
  op.name = std::move(name);
  op.phase = phase_;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  // check_graph() refuses what is longer than this.
  constexpr double kLongestNs = 9e18;
  op.duration_ns =
      static_cast<std::uint64_t>(std::clamp(std::ceil(seconds * 1e9), 1.0, kLongestNs));
  const bool updates = std::any_of(op.reads.begin(), op.reads.end(), [&op](StorageIndex read) {
    return std::find(op.writes.begin(), op.writes.end(), read) != op.writes.end();
  });
  op.recomputable = recomputable_ && !updates;
  graph_.ops.push_back(std::move(op));
}

double GraphBuilder::seconds_of(const std::string& phase) const {
  double seconds = 0;
  for (const Op& op : graph_.ops) {
    if (op.phase == phase) seconds += static_cast<double>(op.duration_ns) * 1e-9;
  }
  return seconds;
}

std::uint64_t GraphBuilder::bytes(StorageIndex storage) const {
  return graph_.storages[storage.value()].bytes;
}

const std::string& GraphBuilder::name(StorageIndex storage) const {
  return graph_.storages[storage.value()].name;
}

}  // namespace ho::models
