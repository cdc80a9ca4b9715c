#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"

namespace ho {

/// The encoding of a graph or hardware file. The suffix of a file selects it.
enum class GraphEncoding : std::uint8_t {
  kJson,    ///< .json: protobuf's JSON mapping; unknown fields are errors
  kText,    ///< .textproto
  kBinary,  ///< .pb
};

/// Parses a graph from untrusted bytes and checks every rule of FORMATS.md. @param file  the prefix
/// of error texts; not opened
/// @return kInvalidArgument with file, op or storage (name and id) and field; kUnsupported for
/// another version; kOutOfRange if a size limit of FORMATS.md is exceeded.
[[nodiscard]] Result<Graph> parse_graph(std::string_view bytes, GraphEncoding encoding,
                                        const std::string& file);
/// Reads a file and parses it; the suffix selects the encoding. Also returns errors of the system.
[[nodiscard]] Result<Graph> read_graph_file(const std::string& path);
/// parse_graph() reads the result back as an equal graph.
[[nodiscard]] std::string serialize_graph(const Graph& graph, GraphEncoding encoding);
[[nodiscard]] std::string graph_to_json(const Graph& graph);
/// Whether write_graph_file() knows the suffix: for commands that write a graph at their end.
/// @return kInvalidArgument.
[[nodiscard]] Result<void> check_graph_path(const std::string& path);
/// Replaces the file as a whole; the suffix selects the encoding.
[[nodiscard]] Result<void> write_graph_file(const Graph& graph, const std::string& path);

/// The duration of an op, measured on a machine.
struct OpTime {
  std::uint32_t id = 0;
  std::uint64_t duration_ns = 0;
  std::string name;  ///< empty: unknown
};
/// Reads ids, names and durations of ops from an untrusted file in a graph format: the output of
/// ho_write_op_times(), or a graph with measured durations. Ignores all other fields.
/// @return errors of the system; kInvalidArgument if the file does not parse or has no ops.
[[nodiscard]] Result<std::vector<OpTime>> read_op_times_file(const std::string& path);

/// The same for hardware descriptions.
[[nodiscard]] Result<Hardware> parse_hardware(std::string_view bytes, GraphEncoding encoding,
                                              const std::string& file);
[[nodiscard]] Result<Hardware> read_hardware_file(const std::string& path);
[[nodiscard]] std::string hardware_to_json(const Hardware& hardware);
[[nodiscard]] Result<void> write_hardware_file(const Hardware& hardware, const std::string& path);

/// A tensor of a model that comes from one layout to another.
struct TensorMove {
  std::string name;
  std::vector<std::uint64_t> shape;  ///< in elements; not checked to fit a layout
  std::uint64_t element_bytes = 0;   ///< 1 to kElementBytesMax
  std::string from;                  ///< layouts as text, not parsed; may be empty
  std::string to;
};
inline constexpr std::uint64_t kElementBytesMax = 1024;
/// Reads a list of one tensor at least, with different names, from an untrusted file; the suffix
/// selects the encoding.
/// @return errors of the system; kInvalidArgument with file, tensor and field.
[[nodiscard]] Result<std::vector<TensorMove>> read_tensors_file(const std::string& path);

/// Encodes a .hos file. Equal schedules give equal bytes.
[[nodiscard]] std::string encode_schedule(const schedule::Schedule& schedule);
/// Parses an untrusted .hos file. The result is safe to index (schedule::check_structure);
/// schedule::validate() decides whether it is legal.
/// @return kCorrupt for damaged or truncated bytes and for an invalid structure; kUnsupported for
/// an intact file of another format version.
[[nodiscard]] Result<schedule::Schedule> decode_schedule(std::span<const std::byte> bytes);
[[nodiscard]] Result<schedule::Schedule> read_schedule_file(const std::string& path);
/// Replaces the file as a whole.
[[nodiscard]] Result<void> write_schedule_file(const schedule::Schedule& schedule,
                                               const std::string& path);

}  // namespace ho
