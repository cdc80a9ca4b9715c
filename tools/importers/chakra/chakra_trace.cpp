#include "tools/importers/chakra/chakra_trace.hpp"

#include <algorithm>
#include <cstddef>

#include "tools/importers/bytes/wire_cursor.hpp"
#include "tools/importers/draft.hpp"
#include "tools/importers/import.hpp"

namespace ho::importers {

namespace {

namespace f = chakra_field;

/// One AttributeProto: a name and a value of one of several types.
struct Attribute {
  std::string_view name;
  std::string_view text;               ///< the value of a string
  std::vector<std::string_view> list;  ///< the value of a string list
  std::uint64_t number = 0;            ///< the value of a number or bool, rounded down
  bool below_zero = false;  ///< negative, not a number, or above 2^63; `number` is then 0
};

/// Whether `version` is `release` or "release.anything".
bool is_release(std::string_view version, std::string_view release) {
  return version == release || (version.starts_with(release) && version[release.size()] == '.');
}

/// PyTorch's schemas are "1.1.0" or "1.1.0-chakra.0.0.4", ours "hyperoffload 1". All others are
/// names without a version, as STG's.
bool is_known_schema(std::string_view schema) {
  constexpr std::string_view kSuffix = "-chakra.";
  constexpr std::string_view kOwn = "hyperoffload ";
  if (schema.starts_with(kOwn)) return schema == kOwnSchema;
  const std::size_t suffix = schema.find(kSuffix);
  if (suffix != std::string_view::npos &&
      !is_release(schema.substr(suffix + kSuffix.size()), "0.0")) {
    return false;
  }
  const std::string_view release = schema.substr(0, suffix);
  const bool is_number = !release.empty() && release[0] >= '0' && release[0] <= '9';
  return !is_number || is_release(release, "1.0") || is_release(release, "1.1");
}

class ChakraDecoder {
 public:
  explicit ChakraDecoder(std::string_view bytes) : rest_(bytes) {}

  Result<ChakraTrace> run() {
    auto metadata = take_frame();
    if (!metadata) return metadata.error();
    if (auto read = read_metadata(*metadata); !read) return read.error();
    while (!rest_.empty()) {
      if (trace_.nodes.size() >= kNodesMax) {
        return Error(Errc::kOutOfRange, "more than " + std::to_string(kNodesMax) + " nodes");
      }
      auto frame = take_frame();
      if (!frame) return frame.error();
      if (auto read = read_node(*frame); !read) {
        return read.error().at("node number " + std::to_string(trace_.nodes.size()));
      }
    }
    return std::move(trace_);
  }

 private:
  static Error corrupt() { return Error(Errc::kCorrupt, "not a Chakra message, or truncated"); }

  Result<std::string_view> take_frame() {
    const auto length = WireCursor::take_varint(rest_);
    if (!length || *length > rest_.size()) return corrupt();
    const std::string_view frame = rest_.substr(0, *length);
    rest_.remove_prefix(*length);
    return frame;
  }

  [[nodiscard]] Result<void> count_operand() {
    if (++operands_ > kOperandsMax) {
      return Error(Errc::kOutOfRange, "more than " + std::to_string(kOperandsMax) +
                                          " operands and dependencies in all nodes");
    }
    return {};
  }

  Result<Attribute> read_attribute(std::string_view bytes) {
    Attribute out;
    WireCursor in(bytes);
    while (in.next()) {
      if (in.field() == f::kAttributeName) {
        out.name = in.bytes();
      } else if (in.field() == f::kAttributeString) {
        out.text = in.bytes();
      } else if (in.field() == f::kAttributeStrings) {
        WireCursor values(in.bytes());
        while (values.next()) {
          if (values.field() != 1) continue;
          if (auto counted = count_operand(); !counted) return counted.error();
          out.list.push_back(values.bytes());
        }
        if (values.broken()) return corrupt();
      } else if (!in.is_bytes()) {
        read_number(in, out);
      }
    }
    if (in.broken()) return corrupt();
    return out;
  }

  static void read_number(const WireCursor& in, Attribute& out) {
    constexpr double kEnd = 9223372036854775808.0;  // 2^63
    const std::uint64_t bits = in.number();
    out.number = bits;
    switch (in.field()) {
      case f::kAttributeDouble:
      case f::kAttributeFloat:
        out.below_zero = !(in.real() >= 0 && in.real() < kEnd);
        if (!out.below_zero) out.number = static_cast<std::uint64_t>(in.real());
        break;
      case f::kAttributeInt32:
      case f::kAttributeSfixed32: out.below_zero = static_cast<std::int32_t>(bits) < 0; break;
      case f::kAttributeInt64:
      case f::kAttributeSfixed64: out.below_zero = static_cast<std::int64_t>(bits) < 0; break;
      case f::kAttributeSint32:
      case f::kAttributeSint64:
        out.below_zero = bits % 2 != 0;
        out.number = bits / 2;
        break;
      default: out.below_zero = false; break;
    }
    if (out.below_zero) out.number = 0;
  }

  Result<void> read_metadata(std::string_view bytes) {
    WireCursor in(bytes);
    std::string_view version;
    while (in.next()) {
      if (in.field() == f::kMetadataVersion) version = in.bytes();
      if (in.field() != f::kMetadataAttribute) continue;
      auto attribute = read_attribute(in.bytes());
      if (!attribute) return attribute.error();
      if (attribute->name == "schema") trace_.schema = attribute->text;
      if (attribute->name == "storages") trace_.own_storages = std::move(attribute->list);
    }
    if (in.broken()) return corrupt();
    return check_versions(version);
  }

  /// Numbers of fields and meanings of attributes may differ in other versions.
  [[nodiscard]] Result<void> check_versions(std::string_view version) const {
    if (!version.empty() && !is_release(version, "0.0")) {
      return Error(Errc::kUnsupported,
                   "Chakra version \"" + clean_name(version) + "\" is not known; 0.0.x is");
    }
    if (!is_known_schema(trace_.schema)) {
      return Error(Errc::kUnsupported, "schema \"" + clean_name(trace_.schema) +
                                           "\" is not known; 1.0.x and 1.1.x of PyTorch with " +
                                           "Chakra 0.0.x, and \"" + std::string(kOwnSchema) +
                                           "\" are");
    }
    return {};
  }

  Result<void> read_dependencies(const WireCursor& in, std::vector<std::uint64_t>& out) {
    bool within = true;
    const bool whole = each_number(in, [&](std::uint64_t id) {
      within = within && count_operand().ok();
      if (within) out.push_back(id);
    });
    if (!whole) return corrupt();
    if (!within) return count_operand();
    return {};
  }

  static Result<void> read_values(std::string_view bytes, std::string_view& values,
                                  std::string_view& shapes) {
    WireCursor in(bytes);
    while (in.next()) {
      if (in.field() == 1) values = in.bytes();
      if (in.field() == 2) shapes = in.bytes();
    }
    if (in.broken()) return corrupt();
    return {};
  }

  Result<void> apply_attribute(std::string_view bytes, ChakraNode& node) {
    auto attribute = read_attribute(bytes);
    if (!attribute) return attribute.error();
    const std::string_view name = attribute->name;
    if (attribute->below_zero && (name == "num_ops" || name == "comm_size" || name == "comm_type" ||
                                  name == "duration_ns")) {
      return Error(Errc::kInvalidArgument, clean_name(name) + " is not a number of 0 or more");
    }
    if (name == "inputs") node.inputs = std::move(attribute->list);
    if (name == "outputs") node.outputs = std::move(attribute->list);
    if (name == "num_ops") node.flops = attribute->number;
    if (name == "comm_size") node.communicated_bytes = attribute->number;
    if (name == "comm_type") node.collective = attribute->number;
    if (name == "pg_name") node.group = attribute->text;
    if (name == "op_schema") node.schema = attribute->text;
    if (name == "is_cpu_op") node.on_device = attribute->number == 0;
    if (name == "phase") node.phase = attribute->text;
    if (name == "duration_ns") node.duration_ns = static_cast<double>(attribute->number);
    if (name == "fixed") node.fixed = attribute->number != 0;
    if (name == "recomputable") node.recomputable = attribute->number != 0;
    return {};
  }

  Result<void> read_field(const WireCursor& in, ChakraNode& node) {
    std::string_view output_shapes;
    switch (in.field()) {
      case f::kId: node.id = in.number(); return {};
      case f::kName: node.name = in.bytes(); return {};
      case f::kType: {
        const auto last = static_cast<std::uint64_t>(ChakraType::kCollective);
        if (in.number() > last) {
          return Error(Errc::kUnsupported, "node type " + std::to_string(in.number()));
        }
        node.type = static_cast<ChakraType>(in.number());
        return {};
      }
      case f::kControlDependencies: return read_dependencies(in, node.control_dependencies);
      case f::kDataDependencies: return read_dependencies(in, node.data_dependencies);
      case f::kDurationMicros:
        // An attribute of our own export is more exact, and has priority in any order.
        if (!node.duration_ns && in.number() > 0) {
          node.duration_ns = static_cast<double>(in.number()) * 1000;
        }
        return {};
      case f::kInputs: return read_values(in.bytes(), node.input_values, node.input_shapes);
      case f::kOutputs: return read_values(in.bytes(), node.output_values, output_shapes);
      case f::kAttribute: return apply_attribute(in.bytes(), node);
      default: return {};
    }
  }

  Result<void> read_node(std::string_view bytes) {
    ChakraNode& node = trace_.nodes.emplace_back();
    WireCursor in(bytes);
    while (in.next()) {
      if (auto read = read_field(in, node); !read) return read;
    }
    if (in.broken()) return corrupt();
    return {};
  }

  std::string_view rest_;
  ChakraTrace trace_;
  std::uint64_t operands_ = 0;
};

}  // namespace

Result<ChakraTrace> decode_chakra(std::string_view bytes) {
  auto trace = ChakraDecoder(bytes).run();
  if (!trace) return trace;
  std::sort(trace->nodes.begin(), trace->nodes.end(),
            [](const ChakraNode& a, const ChakraNode& b) { return a.id < b.id; });
  for (std::size_t i = 1; i < trace->nodes.size(); ++i) {
    if (trace->nodes[i].id == trace->nodes[i - 1].id) {
      return Error(Errc::kInvalidArgument,
                   describe_node(trace->nodes[i]) + ": the id occurs twice");
    }
  }
  return trace;
}

std::string describe_node(const ChakraNode& node) {
  return "node " + std::to_string(node.id) + " (" + clean_name(node.name) + ")";
}

}  // namespace ho::importers
