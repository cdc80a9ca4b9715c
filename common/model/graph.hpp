#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/strong.hpp"

namespace ho {

/// Dense index into Graph::storages and Schedule::storages. Not the id from a file.
using StorageIndex = Strong<struct StorageIndexTag, std::uint32_t>;
/// Dense index into Graph::ops and Schedule::ops.
using OpIndex = Strong<struct OpIndexTag, std::uint32_t>;

/// What a storage holds. The numbers are those of graph.proto.
enum class StorageKind : std::uint8_t {
  kUnspecified = 0,
  kActivation = 1,
  kWeight = 2,
  kGradient = 3,
  kOptimizerState = 4,
  kKvCache = 5,
  kInput = 6,
  kWorkspace = 7,
  kOutput = 8,  ///< the job reads its value after the step; persistent, never read before written
};
inline constexpr StorageKind kStorageKindLast = StorageKind::kOutput;

/// The spelling of graph.proto: "ACTIVATION", "WEIGHT", ...
[[nodiscard]] std::string_view storage_kind_name(StorageKind kind);

/// What the planner should do with a storage between its uses. The numbers are those of
/// graph.proto.
enum class OffloadHint : std::uint8_t {
  kNone = 0,
  kPreferRemote = 1,  ///< its home is in remote DDR if the hardware has any
  kNever = 2,         ///< stays on the device from first to last use
};

/// The spelling of graph.proto: "HINT_NONE", "PREFER_REMOTE", "NEVER".
[[nodiscard]] std::string_view offload_hint_name(OffloadHint hint);

/// Homes of one storage at most.
inline constexpr std::uint32_t kCopiesMax = 2;

/// A set of tensors that share memory. The planner moves storages, not tensors.
struct Storage {
  std::uint32_t id = 0;  ///< the id in the input file; unique
  std::string name;
  std::uint64_t bytes = 0;  ///< >= 1
  StorageKind kind = StorageKind::kUnspecified;
  bool persistent = false;  ///< the value outlives the step
  bool pinned = false;      ///< must stay on the device
  OffloadHint hint = OffloadHint::kNone;
  /// Homes that its value gets below the device, in as many failure domains; up to kCopiesMax. 0:
  /// nobody said, so one. Says nothing of what the step computes: not part of fingerprint().
  std::uint32_t copies = 0;

  bool operator==(const Storage&) const = default;
};

/// A kernel, a collective or a fused region. An op updates a storage in place if it lists it in
/// both reads and writes; it overwrites the whole storage if it lists it in writes only. A list
/// names a storage at most once.
struct Op {
  std::uint32_t id = 0;  ///< the id in the input file; unique
  std::string name;
  std::uint64_t duration_ns = 0;
  std::vector<StorageIndex> reads;
  std::vector<StorageIndex> writes;
  std::vector<OpIndex>
      after;  ///< control dependencies; they and the data dependencies form no cycle
  std::string phase;
  bool fixed = false;
  bool recomputable = false;
  /// A collective: ranks whose graphs have ops of the same group run them together. It is fixed.
  /// Empty: not one.
  std::string group = {};

  bool operator==(const Op&) const = default;
};

/// One whole step: its ops in program order. proto/convert reads and validates graphs; a job may
/// also build one.
struct Graph {
  std::string name;
  std::vector<Storage> storages;
  std::vector<Op> ops;

  bool operator==(const Graph&) const = default;
};

/// Identifies a graph's content, whatever its file format: XXH3 over every field but
/// Storage::copies in a fixed order.
[[nodiscard]] std::uint64_t fingerprint(const Graph& graph);

}  // namespace ho
