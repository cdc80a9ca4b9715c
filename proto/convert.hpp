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

/// How a graph or hardware description is written down. Files name theirs by suffix.
enum class GraphEncoding : std::uint8_t {
  kJson,    ///< .json: protobuf's JSON mapping; unknown fields are errors
  kText,    ///< .textproto
  kBinary,  ///< .pb
};

/// Reads a graph from bytes that are not trusted and checks every rule of FORMATS.md.
/// @param file  stands before every error's text; it is not opened
/// @return kInvalidArgument with file, op or storage (name and id) and field; kUnsupported for
///         another version; kOutOfRange beyond FORMATS.md's size limits.
[[nodiscard]] Result<Graph> parse_graph(std::string_view bytes, GraphEncoding encoding,
                                        const std::string& file);
/// The same from a file, encoding by suffix. Also the system's errors.
[[nodiscard]] Result<Graph> read_graph_file(const std::string& path);
/// Readable by parse_graph, with an equal graph as the result.
[[nodiscard]] std::string serialize_graph(const Graph& graph, GraphEncoding encoding);
[[nodiscard]] std::string graph_to_json(const Graph& graph);
/// Encoding by suffix; replaces the file as a whole.
[[nodiscard]] Result<void> write_graph_file(const Graph& graph, const std::string& path);

/// What an op of a graph took on a machine.
struct OpTime {
  std::uint32_t id = 0;
  std::uint64_t duration_ns = 0;
};
/// Reads a file in a graph's form of which only each op's id and duration count, not trusted:
/// ho_write_op_times() writes one, and a graph with measured durations is one.
/// @return the system's errors; kInvalidArgument where it does not parse or holds no op.
[[nodiscard]] Result<std::vector<OpTime>> read_op_times_file(const std::string& path);

/// As for graphs.
[[nodiscard]] Result<Hardware> parse_hardware(std::string_view bytes, GraphEncoding encoding,
                                              const std::string& file);
[[nodiscard]] Result<Hardware> read_hardware_file(const std::string& path);
[[nodiscard]] std::string hardware_to_json(const Hardware& hardware);
[[nodiscard]] Result<void> write_hardware_file(const Hardware& hardware, const std::string& path);

/// The bytes of a .hos file. Deterministic: equal schedules give equal bytes.
[[nodiscard]] std::string encode_schedule(const schedule::Schedule& schedule);
/// Reads the bytes of a .hos file that are not trusted. What comes out is safe to index (see
/// schedule::check_structure); whether it is legal is schedule::validate()'s to say.
/// @return kCorrupt for damaged or cut bytes and for a broken structure; kUnsupported for an intact
///         file of another format version.
[[nodiscard]] Result<schedule::Schedule> decode_schedule(std::span<const std::byte> bytes);
[[nodiscard]] Result<schedule::Schedule> read_schedule_file(const std::string& path);
/// Replaces the file as a whole.
[[nodiscard]] Result<void> write_schedule_file(const schedule::Schedule& schedule,
                                               const std::string& path);

}  // namespace ho
