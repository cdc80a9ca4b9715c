#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"

namespace ho::importers {

/// Node types of Chakra; the numbers are those of its schema.
enum class ChakraType : std::uint8_t {
  kInvalid = 0,
  kMetadata = 1,
  kMemoryLoad = 2,
  kMemoryStore = 3,
  kCompute = 4,
  kSend = 5,
  kReceive = 6,
  kCollective = 7,
};

/// Numbers of the fields that the importer reads or the exporter writes. Source: et_def.proto of
/// the Chakra schema, and existing traces.
namespace chakra_field {
inline constexpr std::uint32_t kMetadataVersion = 1;
inline constexpr std::uint32_t kMetadataAttribute = 2;
inline constexpr std::uint32_t kId = 1;
inline constexpr std::uint32_t kName = 2;
inline constexpr std::uint32_t kType = 3;
inline constexpr std::uint32_t kControlDependencies = 4;
inline constexpr std::uint32_t kDataDependencies = 5;
inline constexpr std::uint32_t kStartMicros = 6;
inline constexpr std::uint32_t kDurationMicros = 7;
inline constexpr std::uint32_t kInputs = 8;   ///< message: values 1, shapes 2, types 3
inline constexpr std::uint32_t kOutputs = 9;  ///< the same
inline constexpr std::uint32_t kAttribute = 10;
inline constexpr std::uint32_t kAttributeName = 1;
inline constexpr std::uint32_t kAttributeDouble = 3;
inline constexpr std::uint32_t kAttributeFloat = 5;
inline constexpr std::uint32_t kAttributeInt32 = 7;
inline constexpr std::uint32_t kAttributeInt64 = 9;
inline constexpr std::uint32_t kAttributeUint64 = 13;
inline constexpr std::uint32_t kAttributeSint32 = 15;  ///< zigzag
inline constexpr std::uint32_t kAttributeSint64 = 17;  ///< zigzag
inline constexpr std::uint32_t kAttributeSfixed32 = 23;
inline constexpr std::uint32_t kAttributeSfixed64 = 25;
inline constexpr std::uint32_t kAttributeBool = 27;
inline constexpr std::uint32_t kAttributeString = 29;
inline constexpr std::uint32_t kAttributeStrings = 30;  ///< message: values 1
}  // namespace chakra_field

/// The value of the metadata attribute "schema" in traces of export_chakra().
inline constexpr std::string_view kOwnSchema = "hyperoffload 1";

/// One node. Views point into the trace's bytes.
struct ChakraNode {
  std::uint64_t id = 0;
  std::string_view name;
  ChakraType type = ChakraType::kInvalid;
  std::vector<std::uint64_t> control_dependencies;
  std::vector<std::uint64_t> data_dependencies;
  std::optional<double> duration_ns;
  // PyTorch's style: text.
  std::string_view input_values;
  std::string_view input_shapes;
  std::string_view output_values;
  std::string_view schema;
  bool on_device = false;  ///< is_cpu_op is present and false
  // STG's style: name, bytes, name, bytes, ...
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
  std::uint64_t flops = 0;
  std::uint64_t communicated_bytes = 0;
  std::uint64_t collective = 0;  ///< comm_type; 0 is all-reduce
  std::string_view group;        ///< pg_name; may be empty
  // Attributes of our own export.
  std::string_view phase;
  bool fixed = false;
  bool recomputable = false;
};

struct ChakraTrace {
  std::string_view schema;
  std::vector<std::string_view>
      own_storages;  ///< from traces with kOwnSchema: name, bytes, kind, flags, ...
  std::vector<ChakraNode> nodes;
};

/// Decodes frames and nodes. Checks that the versions are known, that ids are unique and lists
/// within the limits of the importers.
[[nodiscard]] Result<ChakraTrace> decode_chakra(std::string_view bytes);

/// Formats a node as "node 12 (name)", safe to print.
[[nodiscard]] std::string describe_node(const ChakraNode& node);

}  // namespace ho::importers
