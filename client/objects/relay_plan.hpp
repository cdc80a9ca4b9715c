#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/layout/layout.hpp"
#include "common/layout/mesh.hpp"
#include "proto/control/object_manifest.hpp"

// How ranks that need the same tiles share the work of reading them. Pure.
namespace ho::client {

/// Bytes of the reader's whole tile.
struct TileRange {
  std::uint64_t begin_bytes = 0;
  std::uint64_t length_bytes = 0;
};

/// A tensor that the ranks of a step gather.
struct RelayedTensor {
  std::size_t wanted = 0;  ///< index of the wanted tensor
  /// What all ranks of the step have in the end, as a tensor over the step's mesh: its layout says
  /// which part each has before.
  ObjectTensor tensor;
  TileRange before;
  TileRange after;
};

/// Ranks that differ only in the step's axes give one another the parts that each of them has.
struct RelayStep {
  std::string mesh;          ///< these ranks', as parse_mesh() reads it
  std::size_t position = 0;  ///< this rank's in it
  std::vector<RelayedTensor> tensors;
};

/// What one rank does to read its tiles with others: first it reads the parts of `first` from the
/// publisher, then come the steps. Every rank makes the same steps. A value.
struct RelayPlan {
  struct First {
    std::string layout;  ///< over the reader's mesh
    TileRange range;
  };
  std::vector<First> first;  ///< parallel to the wanted tensors
  std::vector<RelayStep> steps;
};

/// Reads "node;gpu": the axes along which ranks share tiles, step after step; a step has one axis
/// or several ("node,gpu"). @return kInvalidArgument: an axis that the mesh lacks, or a second
/// time.
[[nodiscard]] Result<std::vector<std::vector<std::uint32_t>>> parse_relay(std::string_view text,
                                                                          const layout::Mesh& mesh);

/// Divides each tile along its first dimension over the axes of the steps. An axis that divides the
/// tensor already, and the rest of its step, leave the tensor as it is.
/// @param tensors  as the reader wants them: its layouts, and the object's shapes.
/// @return kInvalidArgument: a layout does not fit.
[[nodiscard]] Result<RelayPlan> plan_relays(const layout::Mesh& mesh, std::size_t position,
                                            const std::vector<ObjectTensor>& tensors,
                                            const std::vector<std::vector<std::uint32_t>>& steps);

}  // namespace ho::client
