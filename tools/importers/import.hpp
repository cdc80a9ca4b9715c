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

/// Limit for a trace or model, unpacked. A trace of one rank of a model with 70 G parameters has
/// 615 MB. Memory and time of an importer are linear in it.
inline constexpr std::uint64_t kInputBytesMax = std::uint64_t{2} << 30U;
/// Limit for the nodes of a trace or model.
inline constexpr std::uint32_t kNodesMax = 2U << 20U;
/// Limit for the operands of all nodes together.
inline constexpr std::uint32_t kOperandsMax = 32U << 20U;

/// The assumed speed of one device. A missing duration is max(flops / flops_per_s, bytes /
/// bytes_per_s); for communication it is bytes / network_bytes_per_s.
struct Rates {
  double flops_per_s = 100e12;  ///< an accelerator of 2024 at half of its 16-bit peak
  double bytes_per_s =
      1.5e12;  ///< the same accelerator, at one half to three quarters of its HBM bandwidth
  /// Rate for the bytes of a collective's operands, each counted once; it includes the cost of the
  /// algorithm. Absent: bytes_per_s.
  std::optional<double> network_bytes_per_s = {};
};

struct Options {
  Rates rates;
  /// Sizes for named dimensions of an ONNX model ("batch" -> 8).
  std::map<std::string, std::uint64_t> dimensions;
};

/// Facts for people about how the graph was made.
struct Notes {
  Rates rates;
  std::uint32_t measured_ops = 0;     ///< durations taken from the file
  std::uint32_t derived_ops = 0;      ///< durations from the roofline
  std::uint32_t flops_bound_ops = 0;  ///< those of derived_ops that the FLOPs determine
  std::uint32_t network_ops = 0;      ///< those of derived_ops at network_bytes_per_s
  std::vector<std::string> remarks;   ///< sentences
};

struct Imported {
  Graph graph;
  Notes notes;
};

// Each function parses untrusted bytes and returns a graph that check_graph() accepts.
// @return kInvalidArgument or kCorrupt, naming the node and the fault; kOutOfRange if a limit above
// is exceeded; kUnsupported for a part of the format that this importer does not read.
// Pure. Time and memory are near-linear in the input.

/// A Chakra execution trace (.et) with attributes of STG, of PyTorch or of export_chakra().
[[nodiscard]] Result<Imported> import_chakra(std::string_view bytes, const Options& options);
/// The main graph of an ONNX model.
[[nodiscard]] Result<Imported> import_onnx(std::string_view bytes, const Options& options);
/// A PyTorch execution trace (JSON, schema 1.0.1 and 1.1).
[[nodiscard]] Result<Imported> import_pytorch(std::string_view bytes, const Options& options);

}  // namespace ho::importers
