#include "tools/importers/chakra/chakra.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "common/model/check_graph.hpp"
#include "tools/importers/bytes/literal_cursor.hpp"
#include "tools/importers/pytorch/tensor_trace.hpp"

namespace ho::importers {

namespace {

Error bad_node(const ChakraNode& node, const std::string& reason) {
  return Error(Errc::kInvalidArgument, describe_node(node) + ": " + reason);
}

/// Converts PyTorch's style to the input of the PyTorch importer.
Result<TensorTrace> to_tensor_trace(const ChakraTrace& trace) {
  TensorTrace out;
  out.name = "chakra " + std::string(trace.schema);
  out.nodes.reserve(trace.nodes.size());
  for (const ChakraNode& in : trace.nodes) {
    TraceNode& node = out.nodes.emplace_back();
    node.id = in.id;
    node.parent = in.control_dependencies.empty() ? 0 : in.control_dependencies.front();
    node.name = in.name;
    node.schema = in.schema;
    node.shapes = in.input_shapes;
    node.duration_ns = in.duration_ns;
    // Chakra's converter writes exclusive_dur. Source: pytorch_converter.py of mlcommons/chakra.
    node.exclusive = true;
    node.pair = in.type == ChakraType::kSend || in.type == ChakraType::kReceive;
    node.collective = node.pair || in.type == ChakraType::kCollective;
    node.group = in.group;
    node.kernel = in.on_device && in.type != ChakraType::kMetadata;
    for (const auto& [text, list] :
         {std::pair(in.input_values, &node.inputs), std::pair(in.output_values, &node.outputs)}) {
      if (text.empty()) continue;
      if (auto read = out.read_tensors(text, *list); !read) {
        return read.error().at(describe_node(in));
      }
    }
  }
  return out;
}

std::optional<StorageKind> kind_named(std::string_view name) {
  for (unsigned k = 0; k <= static_cast<unsigned>(kStorageKindLast); ++k) {
    if (storage_kind_name(static_cast<StorageKind>(k)) == name) return static_cast<StorageKind>(k);
  }
  return std::nullopt;
}

void apply_flags(std::string_view flags, Storage& storage) {
  const auto has = [flags](char flag) { return flags.find(flag) != std::string_view::npos; };
  storage.persistent = has('p');
  storage.pinned = has('d');
  if (has('r')) storage.hint = OffloadHint::kPreferRemote;
  if (has('n')) storage.hint = OffloadHint::kNever;
}

}  // namespace

Result<std::vector<std::uint32_t>> topological_order(
    const ChakraTrace& trace, const std::vector<std::vector<std::uint32_t>>& dependencies) {
  const auto count = static_cast<std::uint32_t>(trace.nodes.size());
  std::vector<std::uint32_t> missing(count);
  std::vector<std::vector<std::uint32_t>> dependents(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    missing[i] = static_cast<std::uint32_t>(dependencies[i].size());
    for (const std::uint32_t before : dependencies[i]) dependents[before].push_back(i);
  }
  // Node indices follow ids, so the smallest index has the smallest id.
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (missing[i] == 0) ready.push(i);
  }
  std::vector<std::uint32_t> order;
  order.reserve(count);
  while (!ready.empty()) {
    const std::uint32_t next = ready.top();
    ready.pop();
    order.push_back(next);
    for (const std::uint32_t after : dependents[next]) {
      if (--missing[after] == 0) ready.push(after);
    }
  }
  if (order.size() == count) return order;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (missing[i] != 0) return bad_node(trace.nodes[i], "depends on a cycle of dependencies");
  }
  return order;
}

Result<void> draft_own_trace(const ChakraTrace& trace, Draft& draft) {
  constexpr std::size_t kFields = 4;
  if (trace.own_storages.size() % kFields != 0) {
    return Error(Errc::kInvalidArgument, "the metadata's storages are not in groups of four");
  }
  std::map<std::string_view, std::uint32_t> numbers;
  for (std::size_t i = 0; i < trace.own_storages.size(); i += kFields) {
    const std::string_view key = trace.own_storages[i];
    const auto bytes = to_count(trace.own_storages[i + 1]);
    const auto kind = kind_named(trace.own_storages[i + 2]);
    if (!bytes || *bytes > kBytesMax || !kind) {
      return Error(Errc::kInvalidArgument,
                   "storage " + clean_name(key) + ": the size or the kind is missing");
    }
    Storage storage;
    storage.name = key.substr(std::min(key.find(':'), key.size() - 1) + 1);
    storage.bytes = *bytes;
    storage.kind = *kind;
    apply_flags(trace.own_storages[i + 3], storage);
    if (!numbers.emplace(key, draft.add_storage(std::move(storage))).second) {
      return Error(Errc::kInvalidArgument, "storage " + clean_name(key) + " is named twice");
    }
  }
  std::uint64_t moves = 0;
  for (const ChakraNode& node : trace.nodes) {
    if (node.type != ChakraType::kCompute) {
      ++moves;
      continue;
    }
    DraftOp op;
    op.name = node.name;
    op.phase = node.phase;
    op.duration_ns = node.duration_ns.value_or(0);
    op.fixed = node.fixed;
    op.recomputable = node.recomputable;
    for (const auto& [list, into] :
         {std::pair(&node.inputs, &op.reads), std::pair(&node.outputs, &op.writes)}) {
      for (std::size_t k = 0; k < list->size(); k += 2) {
        const auto at = numbers.find((*list)[k]);
        if (at == numbers.end()) {
          return bad_node(node, "storage " + clean_name((*list)[k]) + " is not in the metadata");
        }
        into->push_back(at->second);
      }
    }
    draft.add_op(std::move(op));
  }
  draft.remark("A planned schedule: its " + std::to_string(moves) +
               " nodes that move or free memory are left out.");
  return {};
}

Result<Imported> import_chakra(std::string_view bytes, const Options& options) {
  auto trace = decode_chakra(bytes);
  if (!trace) return trace.error();
  if (trace->nodes.empty()) return Error(Errc::kInvalidArgument, "the trace has no nodes");
  const auto is_pytorch = [](const ChakraNode& node) {
    return !node.input_values.empty() || !node.output_values.empty() || !node.schema.empty();
  };
  if (std::any_of(trace->nodes.begin(), trace->nodes.end(), is_pytorch)) {
    auto tensors = to_tensor_trace(*trace);
    if (!tensors) return tensors.error();
    return import_tensor_trace(*std::move(tensors), options);
  }
  Draft draft;
  const auto drafted = trace->schema == kOwnSchema ? draft_own_trace(*trace, draft)
                                                   : draft_named_tensors(*trace, draft);
  if (!drafted) return drafted.error();
  return std::move(draft).finish("chakra " + std::string(trace->schema), options.rates);
}

}  // namespace ho::importers
