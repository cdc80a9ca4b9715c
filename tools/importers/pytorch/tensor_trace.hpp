#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/importers/draft.hpp"

namespace ho::importers {

/// One tensor in PyTorch's traces: [tensor, storage, offset, elements, element bytes, device]. Both
/// ids are addresses, which are reused once they are free.
struct TensorRef {
  std::uint64_t tensor = 0;
  std::uint64_t storage = 0;
  std::uint64_t offset = 0;
  std::uint64_t elements = 0;
  std::uint64_t element_bytes = 0;
  std::uint32_t device = 0;    ///< index into TensorTrace::devices
  std::uint32_t argument = 0;  ///< index of the argument that it is or belongs to
  std::uint32_t element = 0;   ///< its index in a list of tensors, from 1; 0: not in a list
};

/// One node of a PyTorch trace: an operator call, or a group of calls.
struct TraceNode {
  std::uint64_t id = 0;      ///< increases with the time of the call
  std::uint64_t parent = 0;  ///< the node that called it; 0 or its own id: none
  std::string name;
  std::string schema;  ///< the operator's signature; empty if it is not an operator
  std::vector<TensorRef> inputs;
  std::vector<TensorRef> outputs;
  std::string_view shapes;  ///< text: a list with the sizes of each input; for FLOPs
  std::optional<double> duration_ns;
  bool exclusive = false;   ///< duration_ns excludes nested calls
  bool kernel = false;      ///< a kernel on the device; part of the operator above it
  bool collective = false;  ///< communication
  bool pair = false;        ///< a send or receive, as its type has it
  std::string_view group;   ///< the process group of a collective; may be empty
};

/// A PyTorch trace in either of its formats, before it is split into storages and ops.
struct TensorTrace {
  std::string name;
  std::vector<TraceNode> nodes;
  std::vector<std::string> devices;
  std::map<std::string, std::uint32_t> device_numbers;  ///< name -> index into `devices`
  std::uint64_t operands = 0;                           ///< sum over all nodes

  /// Reads a list of arguments, with tensors and lists of tensors among them (JSON or Python's
  /// repr).
  [[nodiscard]] Result<void> read_tensors(std::string_view text, std::vector<TensorRef>& out);
};

/// Imports the step in the trace. RULES.md has the rules.
[[nodiscard]] Result<Imported> import_tensor_trace(TensorTrace trace, const Options& options);

}  // namespace ho::importers
