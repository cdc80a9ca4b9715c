#include "tools/importers/onnx/onnx_model.hpp"

#include <utility>

#include "tools/importers/bytes/wire_cursor.hpp"
#include "tools/importers/import.hpp"

namespace ho::importers {

namespace {

Error corrupt() { return Error(Errc::kCorrupt, "not an ONNX model, or truncated"); }

/// Decodes the 64-bit little-endian numbers of raw_data.
std::vector<std::int64_t> read_raw(std::string_view raw) {
  std::vector<std::int64_t> out;
  for (std::size_t at = 0; at + 8 <= raw.size() && out.size() < kOnnxValuesMax; at += 8) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(raw[at + i])) << (8 * i);
    }
    out.push_back(static_cast<std::int64_t>(bits));
  }
  return out;
}

class OnnxDecoder {
 public:
  explicit OnnxDecoder(std::string_view bytes) : bytes_(bytes) {}

  Result<OnnxModel> run() {
    WireCursor in(bytes_);
    bool have_graph = false;
    while (in.next()) {
      if (in.field() == 1) model_.ir_version = static_cast<std::int64_t>(in.number());
      if (in.field() == 2) model_.producer = in.bytes();
      if (in.field() == 8 && in.is_bytes() && !read_opset(in.bytes())) return corrupt();
      if (in.field() != 7 || !in.is_bytes()) continue;
      have_graph = true;
      if (auto read = read_graph(in.bytes()); !read) return read.error();
    }
    if (in.broken()) return corrupt();
    if (!have_graph) return Error(Errc::kInvalidArgument, "the model has no graph");
    return std::move(model_);
  }

 private:
  Result<void> count() {
    if (++elements_ > kOperandsMax) {
      return Error(Errc::kOutOfRange,
                   "more than " + std::to_string(kOperandsMax) + " elements in the graph");
    }
    return {};
  }

  /// Reads OperatorSetIdProto {domain 1, version 2}. Returns false if it is damaged.
  bool read_opset(std::string_view bytes) {
    std::string_view domain;
    std::int64_t version = 0;
    WireCursor in(bytes);
    while (in.next()) {
      if (in.field() == 1) domain = in.bytes();
      if (in.field() == 2) version = static_cast<std::int64_t>(in.number());
    }
    if (domain.empty() || domain == "ai.onnx") model_.opset = version;
    return !in.broken();
  }

  Result<void> read_graph(std::string_view bytes) {
    WireCursor in(bytes);
    while (in.next()) {
      if (auto counted = count(); !counted) return counted;
      Result<void> read;
      switch (in.field()) {
        case 1: read = read_node(in.bytes()); break;
        case 2: model_.graph_name = in.bytes(); break;
        case 5: read = read_initializer(in.bytes()); break;
        case 11: read = read_info(in.bytes(), model_.inputs); break;
        case 12: read = read_info(in.bytes(), model_.outputs); break;
        case 13: read = read_info(in.bytes(), model_.infos); break;
        default: break;
      }
      if (!read) return read;
    }
    if (in.broken()) return corrupt();
    return {};
  }

  Result<void> read_node(std::string_view bytes) {
    if (model_.nodes.size() >= kNodesMax) {
      return Error(Errc::kOutOfRange, "more than " + std::to_string(kNodesMax) + " nodes");
    }
    OnnxNode& node = model_.nodes.emplace_back();
    WireCursor in(bytes);
    while (in.next()) {
      if (auto counted = count(); !counted) return counted;
      switch (in.field()) {
        case 1: node.inputs.push_back(in.bytes()); break;
        case 2: node.outputs.push_back(in.bytes()); break;
        case 3: node.name = in.bytes(); break;
        case 4: node.op = in.bytes(); break;
        case 5: {
          if (auto read = read_attribute(in.bytes(), node); !read) return read;
          break;
        }
        case 7: node.domain = in.bytes(); break;
        default: break;
      }
    }
    if (in.broken()) return corrupt();
    return {};
  }

  static Result<void> read_attribute(std::string_view bytes, OnnxNode& node) {
    std::string_view name;
    OnnxAttribute attribute;
    WireCursor in(bytes);
    while (in.next()) {
      switch (in.field()) {
        case 1: name = in.bytes(); break;
        case 3: attribute.number = static_cast<std::int64_t>(in.number()); break;
        case 4: attribute.text = in.bytes(); break;
        case 5: attribute.tensor = in.bytes(); break;
        case 8: {
          const bool whole = each_number(in, [&attribute](std::uint64_t number) {
            if (attribute.numbers.size() < kOnnxValuesMax) {
              attribute.numbers.push_back(static_cast<std::int64_t>(number));
            }
          });
          if (!whole) return corrupt();
          break;
        }
        default: break;
      }
    }
    if (in.broken()) return corrupt();
    node.attributes.emplace(name, std::move(attribute));
    return {};
  }

  Result<void> read_initializer(std::string_view bytes) {
    std::string_view name;
    auto tensor = decode_tensor(bytes, name);
    if (!tensor) return tensor.error();
    model_.initializers.emplace(name, *std::move(tensor));
    return {};
  }

  /// ValueInfoProto {name 1, type 2 {tensor_type 1 {elem_type 1, shape 2 {dim 1 {dim_value 1,
  /// dim_param 2}}}}}
  static Result<void> read_info(std::string_view bytes, std::vector<OnnxValueInfo>& out) {
    OnnxValueInfo& info = out.emplace_back();
    std::string_view type;
    WireCursor in(bytes);
    while (in.next()) {
      if (in.field() == 1) info.name = in.bytes();
      if (in.field() == 2) type = in.bytes();
    }
    WireCursor of_type(type);
    std::string_view tensor;
    while (of_type.next()) {
      if (of_type.field() == 1) tensor = of_type.bytes();
    }
    WireCursor of_tensor(tensor);
    while (of_tensor.next()) {
      if (of_tensor.field() == 1) info.type = static_cast<std::int64_t>(of_tensor.number());
      if (of_tensor.field() != 2 || !of_tensor.is_bytes()) continue;
      if (auto read = read_sizes(of_tensor.bytes(), info); !read) return read;
    }
    if (in.broken() || of_type.broken() || of_tensor.broken()) return corrupt();
    return {};
  }

  static Result<void> read_sizes(std::string_view bytes, OnnxValueInfo& info) {
    auto& sizes = info.sizes.emplace();
    WireCursor in(bytes);
    while (in.next()) {
      if (in.field() != 1) continue;
      if (sizes.size() >= kOnnxValuesMax) {
        return Error(Errc::kOutOfRange, "a tensor of more than 64 dimensions");
      }
      OnnxSize& size = sizes.emplace_back();
      WireCursor dimension(in.bytes());
      while (dimension.next()) {
        if (dimension.field() == 1) size.number = dimension.number();
        if (dimension.field() == 2) size.name = dimension.bytes();
      }
      if (dimension.broken()) return corrupt();
    }
    if (in.broken()) return corrupt();
    return {};
  }

  std::string_view bytes_;
  OnnxModel model_;
  std::uint64_t elements_ = 0;
};

}  // namespace

Result<OnnxModel> decode_onnx(std::string_view bytes) { return OnnxDecoder(bytes).run(); }

const OnnxAttribute* OnnxNode::find(std::string_view attribute) const {
  const auto at = attributes.find(attribute);
  return at == attributes.end() ? nullptr : &at->second;
}

std::int64_t OnnxNode::number(std::string_view attribute, std::int64_t otherwise) const {
  const OnnxAttribute* const found = find(attribute);
  return found == nullptr ? otherwise : found->number;
}

// TensorProto {dims 1, data_type 2, int64_data 7, name 8, raw_data 9}
Result<OnnxTensor> decode_tensor(std::string_view bytes, std::string_view& name) {
  OnnxTensor out;
  auto& dims = out.dims.emplace();
  std::vector<std::int64_t> values;
  bool too_many = false;
  WireCursor in(bytes);
  while (in.next()) {
    bool whole = true;
    switch (in.field()) {
      case 1:
        whole = each_number(in, [&](std::uint64_t size) {
          too_many = too_many || dims.size() >= kOnnxValuesMax;
          if (!too_many) dims.push_back(size);
        });
        break;
      case 2: out.type = static_cast<std::int64_t>(in.number()); break;
      case 7:
        whole = each_number(in, [&](std::uint64_t value) {
          if (values.size() < kOnnxValuesMax) values.push_back(static_cast<std::int64_t>(value));
        });
        break;
      case 8: name = in.bytes(); break;
      case 9:
        if (out.type == kOnnxInt64) values = read_raw(in.bytes());
        break;
      default: break;
    }
    if (!whole) return corrupt();
  }
  if (in.broken()) return corrupt();
  if (too_many) return Error(Errc::kOutOfRange, "a tensor of more than 64 dimensions");
  std::uint64_t count = 1;
  for (const std::uint64_t size : dims)
    count = size > kOnnxValuesMax ? kOnnxValuesMax + 1 : count * size;
  if (out.type == kOnnxInt64 && count == values.size()) out.values = std::move(values);
  return out;
}

}  // namespace ho::importers
