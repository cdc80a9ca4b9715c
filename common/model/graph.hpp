#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/strong.hpp"

namespace ho {

/// Dense index into Graph::storages / Schedule::storages (not the id a file gives).
using StorageIndex = Strong<struct StorageIndexTag, std::uint32_t>;
/// Dense index into Graph::ops / Schedule::ops.
using OpIndex = Strong<struct OpIndexTag, std::uint32_t>;

/// What a storage holds. Numbers are graph.proto's.
enum class StorageKind : std::uint8_t {
  kUnspecified = 0,
  kActivation = 1,
  kWeight = 2,
  kGradient = 3,
  kOptimizerState = 4,
  kKvCache = 5,
  kInput = 6,
  kWorkspace = 7,
};

/// "ACTIVATION", "WEIGHT", ... as graph.proto spells it.
[[nodiscard]] std::string_view storage_kind_name(StorageKind kind);

/// What the planner should do with a storage between its uses. Numbers are graph.proto's.
enum class OffloadHint : std::uint8_t {
  kNone = 0,
  kPreferRemote = 1,  ///< its home is in remote DDR, where the hardware has any
  kNever = 2,         ///< stays on the device from its first use to its last
};

/// "HINT_NONE", "PREFER_REMOTE", "NEVER": as graph.proto spells it.
[[nodiscard]] std::string_view offload_hint_name(OffloadHint hint);

/// An alias set of tensors: the unit of planning.
struct Storage {
  std::uint32_t id = 0;  ///< as the input file numbers it; unique
  std::string name;
  std::uint64_t bytes = 0;  ///< >= 1
  StorageKind kind = StorageKind::kUnspecified;
  bool persistent = false;  ///< the value outlives the step
  bool pinned = false;      ///< must stay on the device
  OffloadHint hint = OffloadHint::kNone;

  bool operator==(const Storage&) const = default;
};

/// One kernel, collective or fused region. A storage in both reads and writes is updated in place;
/// only in writes: overwritten whole. Each list holds a storage at most once.
struct Op {
  std::uint32_t id = 0;  ///< as the input file numbers it; unique
  std::string name;
  std::uint64_t duration_ns = 0;
  std::vector<StorageIndex> reads;
  std::vector<StorageIndex> writes;
  std::vector<OpIndex>
      after;  ///< control dependencies; acyclic together with the data dependencies
  std::string phase;
  bool fixed = false;
  bool recomputable = false;

  bool operator==(const Op&) const = default;
};

/// A whole step: ops in program order. Made by proto/convert (validated) or by a job that builds
/// its own.
struct Graph {
  std::string name;
  std::vector<Storage> storages;
  std::vector<Op> ops;

  bool operator==(const Graph&) const = default;
};

/// Identity of a graph's content (not of its file format): XXH3 over every field in a fixed order.
[[nodiscard]] std::uint64_t fingerprint(const Graph& graph);

}  // namespace ho
