#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"

namespace ho::importers {

/// Most bytes of a trace or model, unpacked: traces of one rank of a model of 70 G parameters have
/// 615 MB. Everything an importer builds is linear in them; the importers' README has figures.
inline constexpr std::uint64_t kInputBytesMax = std::uint64_t{2} << 30U;
/// Most nodes of a trace or model.
inline constexpr std::uint32_t kNodesMax = 2U << 20U;
/// Most operands of all nodes together.
inline constexpr std::uint32_t kOperandsMax = 32U << 20U;

/// What one device is taken to do: a duration that a file lacks is
/// max(flops / flops_per_s, bytes / bytes_per_s); of communication, bytes / network_bytes_per_s.
struct Rates {
  double flops_per_s = 100e12;  ///< an accelerator of 2024 at half its 16-bit peak
  double bytes_per_s = 1.5e12;  ///< the same, half to three quarters of its HBM's rate
  /// Of a collective's operands, once: the algorithm's part is in the rate. Absent: bytes_per_s.
  std::optional<double> network_bytes_per_s = {};
};

struct Options {
  Rates rates;
  /// Sizes for the named dimensions of an ONNX model ("batch" -> 8).
  std::map<std::string, std::uint64_t> dimensions;
};

/// What people should know about how a graph was made.
struct Notes {
  Rates rates;
  std::uint32_t measured_ops = 0;     ///< durations taken from the file
  std::uint32_t derived_ops = 0;      ///< durations by the roofline
  std::uint32_t flops_bound_ops = 0;  ///< of those, the ones that the FLOPs decided
  std::uint32_t network_ops = 0;      ///< of those, the ones at network_bytes_per_s
  std::vector<std::string> remarks;   ///< sentences
};

struct Imported {
  Graph graph;
  Notes notes;
};

// Each reads bytes that are not trusted and gives a graph that check_graph() accepts.
// @return kInvalidArgument or kCorrupt naming the node and what is wrong with it; kOutOfRange
//         beyond a limit above; kUnsupported for what the format allows and this cannot read.
// Pure; time and memory near-linear in the input.

/// A Chakra execution trace (.et): STG's or PyTorch's attributes, or export_chakra()'s.
[[nodiscard]] Result<Imported> import_chakra(std::string_view bytes, const Options& options);
/// An ONNX model's main graph.
[[nodiscard]] Result<Imported> import_onnx(std::string_view bytes, const Options& options);
/// A PyTorch execution trace (JSON, schema 1.0.1 and 1.1).
[[nodiscard]] Result<Imported> import_pytorch(std::string_view bytes, const Options& options);

}  // namespace ho::importers
