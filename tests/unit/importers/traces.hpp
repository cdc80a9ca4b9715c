#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tools/importers/bytes/wire_writer.hpp"
#include "tools/importers/chakra/chakra_trace.hpp"
#include "tools/importers/import.hpp"

namespace ho::test {

using importers::WireWriter;

/// Builds a Chakra trace in STG's style.
class ChakraBuilder {
 public:
  using List = std::vector<std::pair<std::string, std::string>>;  ///< name, bytes

  explicit ChakraBuilder(std::string_view schema = "symbolic_tensor_network") {
    WireWriter metadata;
    metadata.message(2, WireWriter().bytes(1, "schema").bytes(29, schema));
    frame(metadata);
  }

  struct Node {
    std::uint64_t id = 0;
    std::string name = {};
    importers::ChakraType type = importers::ChakraType::kCompute;
    std::vector<std::uint64_t> after = {};
    List inputs = {};
    List outputs = {};
    std::uint64_t flops = 0;
    std::uint64_t duration_us = 0;
    std::string group = {};
  };

  ChakraBuilder& node(const Node& in) {
    WireWriter out;
    out.number(1, in.id).bytes(2, in.name).number(3, static_cast<std::uint64_t>(in.type));
    for (const std::uint64_t before : in.after) out.number(5, before);
    if (in.duration_us > 0) out.number(7, in.duration_us);
    out.message(10, list("inputs", in.inputs)).message(10, list("outputs", in.outputs));
    if (!in.group.empty()) out.message(10, WireWriter().bytes(1, "pg_name").bytes(29, in.group));
    if (in.flops > 0) out.message(10, WireWriter().bytes(1, "num_ops").number(9, in.flops));
    return frame(out);
  }

  ChakraBuilder& frame(const WireWriter& message) {
    WireWriter::append_varint(message.text().size(), bytes_);
    bytes_ += message.text();
    return *this;
  }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  static WireWriter list(std::string_view name, const List& tensors) {
    WireWriter values;
    for (const auto& [tensor, bytes] : tensors) values.bytes(1, tensor).bytes(1, bytes);
    return WireWriter().bytes(1, name).message(30, values);
  }

  std::string bytes_;
};

/// Two micro batches of one layer with its update, in STG's form.
inline ChakraBuilder small_stg() {
  const std::string batched = "@0MicroBatch,D";
  const std::string weight = "@0D,D";
  ChakraBuilder out;
  std::vector<std::uint64_t> gradients;
  for (int i = 0; i < 2; ++i) {
    const std::string mb = "mb" + std::to_string(i) + ".";
    const auto id = static_cast<std::uint64_t>(10 * i);
    out.node({.id = id + 3,
              .name = mb + "l.0.dw@0_COMP",
              .after = {id + 2, id + 1},
              .inputs = {{mb + "l.0.dy" + batched, "64"}, {mb + "l.0.renamed" + batched, "64"}},
              .outputs = {{mb + "l.0.dw" + weight, "256"}},
              .flops = 1000});
    out.node({.id = id + 1,
              .name = mb + "l.0.y@0_COMP",
              .inputs = {{mb + "in.x" + batched, "64"}, {mb + "l.0.w" + weight, "256"}},
              .outputs = {{mb + "l.0.y" + batched, "64"}},
              .flops = 1000});
    out.node({.id = id + 2,
              .name = mb + "l.0.dy@0_COMP",
              .after = {id + 1},
              .inputs = {{mb + "l.0.y" + batched, "64"}, {mb + "_l.0.w_backward" + weight, "256"}},
              .outputs = {{mb + "l.0.dy" + batched, "64"}},
              .flops = 1000});
    gradients.push_back(id + 3);
  }
  out.node({.id = 100,
            .name = "l.0._grad@0_COMP",
            .after = gradients,
            .inputs = {{"mb0.l.0._assembled_grad" + weight, "256"}},
            .outputs = {{"l.0._grad" + weight, "256"}}});
  out.node({.id = 101,
            .name = "l.0._sharded@1_COMP",
            .after = {100},
            .inputs = {{"l.0._sharded" + weight, "1280.0"}, {"l.0._grad" + weight, "256"}},
            .outputs = {{"l.0._sharded@1D,D", "1280.0"}}});
  return out;
}

/// The text of the error; empty if there is none.
inline std::string error_of(const Result<importers::Imported>& made) {
  return made ? "" : made.error().message();
}

inline const Storage* find_storage(const Graph& graph, std::string_view name) {
  for (const Storage& storage : graph.storages) {
    if (storage.name == name) return &storage;
  }
  return nullptr;
}

inline const Op* find_op(const Graph& graph, std::string_view name) {
  for (const Op& op : graph.ops) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

/// Names of the storages in a list of an op, sorted by index.
inline std::vector<std::string> names(const Graph& graph, const std::vector<StorageIndex>& list) {
  std::vector<std::string> out;
  for (const StorageIndex s : list) out.push_back(graph.storages[s.value()].name);
  return out;
}

}  // namespace ho::test
