#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"
#include "tools/importers/bytes/literal_cursor.hpp"
#include "tools/importers/chakra/chakra.hpp"

namespace ho::importers {

namespace {

/// A tensor as STG names it, for example "mb0.transformer.3.mha.wqkv@0Dmodel,Dff/tp": path, '@',
/// one digit of version, the sizes as text.
struct NamedTensor {
  std::string_view name;
  std::string_view path;
  std::string_view sizes;
  std::uint64_t bytes = 0;
};

Result<std::vector<NamedTensor>> read_list(const std::vector<std::string_view>& list) {
  if (list.size() % 2 != 0) {
    return Error(Errc::kInvalidArgument, "a tensor list must be name, bytes, name, bytes, ...");
  }
  std::vector<NamedTensor> out;
  for (std::size_t i = 0; i < list.size(); i += 2) {
    NamedTensor tensor;
    tensor.name = list[i];
    const auto at = tensor.name.find('@');
    tensor.path = tensor.name.substr(0, at);
    if (at != std::string_view::npos && at + 2 <= tensor.name.size()) {
      tensor.sizes = tensor.name.substr(at + 2);
    }
    // STG computes some sizes in floating point: "2023751680.0".
    const auto bytes = to_number(list[i + 1]);
    if (!bytes || !(*bytes >= 0) || *bytes > static_cast<double>(kBytesMax)) {
      return Error(Errc::kInvalidArgument, "tensor " + clean_name(tensor.name) + ": the size " +
                                               clean_name(list[i + 1]) +
                                               " is not between 0 and 2^50");
    }
    tensor.bytes = static_cast<std::uint64_t>(*bytes);
    out.push_back(tensor);
  }
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Length of the prefix "mb12." or "shadow_mb12."; 0 if there is none.
std::size_t micro_batch_prefix(std::string_view path) {
  std::size_t at = path.starts_with("shadow_") ? 7 : 0;
  if (path.substr(at, 2) != "mb") return 0;
  const std::size_t digits = at += 2;
  while (at < path.size() && is_digit(path[at])) ++at;
  return at > digits && at < path.size() && path[at] == '.' ? at + 1 : 0;
}

std::string_view last_part(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

/// One name for all copies of a weight: removes the micro batch and "_..._backward", the form that
/// the backward pass reads.
std::string weight_name(std::string_view path) {
  path.remove_prefix(micro_batch_prefix(path));
  constexpr std::string_view kBackward = "_backward";
  if (!path.ends_with(kBackward)) return std::string(path);
  std::string out(path.substr(0, path.size() - kBackward.size()));
  const auto mark = out.starts_with('_') ? 0 : out.find("._") + 1;
  if (out[mark] == '_') out.erase(mark, 1);
  return out;
}

/// In STG, names of gradients and of ops on them begin with 'd'. These other words begin with 'd'
/// too.
bool is_backward(std::string_view part) {
  static constexpr std::array<std::string_view, 6> kOthers = {"dropout", "down",   "decode",
                                                              "dense",   "dense_", "data"};
  return part.starts_with('d') &&
         std::none_of(kOthers.begin(), kOthers.end(),
                      [part](std::string_view other) { return part.starts_with(other); });
}

/// A parameter that an op of the step updates: reads x@0, writes x@1.
struct Parameter {
  std::uint64_t weight_bytes = 0;
  std::uint64_t state_bytes = 0;  ///< bytes beyond the weight itself
  std::uint32_t op = kNone;       ///< the op of the draft that updates it
  std::uint32_t weight = kNone;
};

class NamedTensors {
 public:
  NamedTensors(const ChakraTrace& trace, Draft& draft) : trace_(trace), draft_(draft) {}

  Result<void> run() {
    if (auto read = read_nodes(); !read) return read;
    const auto order = topological_order(trace_, dependencies_);
    if (!order) return order.error();
    op_of_.assign(trace_.nodes.size(), kNone);
    results_.resize(trace_.nodes.size());
    for (const std::uint32_t i : *order) {
      const ChakraType type = trace_.nodes[i].type;
      const bool is_op = type == ChakraType::kCompute || type == ChakraType::kCollective ||
                         type == ChakraType::kSend || type == ChakraType::kReceive;
      if (auto counted = count_handed_on(i); !counted) return counted;
      if (is_op) {
        add_node(i);
      } else {
        pass_through(i);
      }
    }
    settle_collectives();
    split_parameters();
    remark();
    return {};
  }

 private:
  Result<void> read_nodes() {
    const std::size_t count = trace_.nodes.size();
    inputs_.resize(count);
    outputs_.resize(count);
    dependencies_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const ChakraNode& node = trace_.nodes[i];
      for (auto [from, into] :
           {std::pair(&node.inputs, &inputs_[i]), std::pair(&node.outputs, &outputs_[i])}) {
        auto list = read_list(*from);
        if (!list) return list.error().at(describe_node(node));
        *into = *std::move(list);
        for (const NamedTensor& tensor : *into) note_sizes(tensor);
      }
      for (const NamedTensor& tensor : outputs_[i]) made_.insert(tensor.name);
      for (const auto* list : {&node.data_dependencies, &node.control_dependencies}) {
        for (const std::uint64_t id : *list) add_dependency(i, id);
      }
    }
    for (std::size_t i = 0; i < count; ++i) find_parameter(i);
    return {};
  }

  void note_sizes(const NamedTensor& tensor) {
    batched_ = batched_ || tensor.sizes.find("MicroBatch") != std::string_view::npos;
  }

  void add_dependency(std::size_t i, std::uint64_t id) {
    const auto at = std::lower_bound(
        trace_.nodes.begin(), trace_.nodes.end(), id,
        [](const ChakraNode& node, std::uint64_t wanted) { return node.id < wanted; });
    if (at == trace_.nodes.end() || at->id != id) {
      ++unknown_dependencies_;
      return;
    }
    dependencies_[i].push_back(static_cast<std::uint32_t>(at - trace_.nodes.begin()));
  }

  void find_parameter(std::size_t i) {
    if (trace_.nodes[i].type != ChakraType::kCompute || outputs_[i].size() != 1) return;
    const NamedTensor& out = outputs_[i].front();
    std::uint64_t gradient_bytes = 0;
    const NamedTensor* before = nullptr;
    for (const NamedTensor& in : inputs_[i]) {
      if (in.path == out.path && in.name != out.name && made_.count(in.name) == 0) {
        before = &in;
      } else {
        gradient_bytes = std::max(gradient_bytes, in.bytes);
      }
    }
    if (before == nullptr || is_batched(*before)) return;
    Parameter parameter;
    parameter.weight_bytes =
        gradient_bytes == 0 ? before->bytes : std::min(before->bytes, gradient_bytes);
    parameter.state_bytes = before->bytes - parameter.weight_bytes;
    parameters_.emplace(weight_name(out.path), parameter);
  }

  /// Whether a tensor belongs to the data of a batch and not to the model. If the trace has no sign
  /// of batches, every tensor may.
  [[nodiscard]] bool is_batched(const NamedTensor& tensor) const {
    return !batched_ || tensor.sizes.find("MicroBatch") != std::string_view::npos;
  }

  std::uint32_t add_storage(std::string_view name, std::uint64_t bytes, StorageKind kind) {
    Storage storage;
    storage.name = name;
    storage.bytes = bytes;
    storage.kind = kind;
    storage.persistent = kind == StorageKind::kWeight || kind == StorageKind::kOptimizerState;
    return draft_.add_storage(std::move(storage));
  }

  std::uint32_t weight(const NamedTensor& tensor) {
    const std::string name = weight_name(tensor.path);
    const auto known = weights_.find(name);
    if (known != weights_.end()) return known->second;
    const auto parameter = parameters_.find(name);
    const std::uint64_t bytes =
        parameter == parameters_.end() ? tensor.bytes : parameter->second.weight_bytes;
    const std::uint32_t number = add_storage(name, bytes, StorageKind::kWeight);
    weights_.emplace(name, number);
    return number;
  }

  /// Adds a read of the current node; `add_node()` counts nodes with `reader_`.
  void read(std::uint32_t storage, std::vector<std::uint32_t>& reads) {
    if (read_by_.size() <= storage) read_by_.resize(draft_.storage_count());
    if (std::exchange(read_by_[storage], reader_) != reader_) reads.push_back(storage);
  }
  [[nodiscard]] bool is_read(std::uint32_t storage) const {
    return storage < read_by_.size() && read_by_[storage] == reader_;
  }
  /// Whether the current node reads a result of `node`.
  [[nodiscard]] bool is_read_from(std::uint32_t node) const {
    return std::any_of(results_[node].begin(), results_[node].end(),
                       [this](std::uint32_t s) { return is_read(s); });
  }

  [[nodiscard]] std::uint64_t result_bytes(std::uint32_t node) {
    std::uint64_t bytes = 0;
    for (const std::uint32_t s : results_[node]) {
      bytes = std::max(bytes, draft_.storage(s).bytes);
    }
    return bytes;
  }

  /// Resolves inputs by the names of nodes' outputs. Then assigns the other inputs to the remaining
  /// dependencies: STG leaves out nodes that only rename (a residual, a gathered tensor).
  std::vector<std::uint32_t> resolve_inputs(std::uint32_t i) {
    std::vector<std::uint32_t> reads;
    std::vector<const NamedTensor*> unnamed;
    std::vector<const NamedTensor*> fixed;
    for (const NamedTensor& tensor : inputs_[i]) {
      const auto at = named_.find(tensor.name);
      if (at != named_.end() && made_.count(tensor.name) != 0) {
        read(at->second, reads);
      } else {
        (is_batched(tensor) ? unnamed : fixed).push_back(&tensor);
      }
    }
    std::vector<std::uint32_t> left;
    for (const std::uint32_t before : dependencies_[i]) {
      if (!results_[before].empty() && !is_read_from(before)) left.push_back(before);
    }
    if (unnamed.size() != left.size()) match_by_size(unnamed, left, reads);
    match_by_place(unnamed, left, reads);
    std::uint64_t assembled_bytes = 0;
    for (const std::uint32_t before : left) {
      assembled_bytes += result_bytes(before);
      for (const std::uint32_t s : results_[before]) read(s, reads);
    }
    for (const NamedTensor* tensor : unnamed) read(from_outside(*tensor), reads);
    for (const NamedTensor* tensor : fixed) {
      const bool parameter = parameters_.count(weight_name(tensor->path)) != 0;
      if (!parameter && !left.empty() && assembled_bytes >= tensor->bytes) continue;
      read(weight(*tensor), reads);
    }
    return reads;
  }

  /// Pairs tensors with dependencies whose result has the same size, and removes pairs from both
  /// lists.
  void match_by_size(std::vector<const NamedTensor*>& tensors, std::vector<std::uint32_t>& left,
                     std::vector<std::uint32_t>& reads) {
    std::map<std::uint64_t, std::vector<std::size_t>> places;  // indices into `left`, last first
    for (std::size_t k = left.size(); k-- > 0;) places[result_bytes(left[k])].push_back(k);
    for (const NamedTensor*& tensor : tensors) {
      const auto at = places.find(tensor->bytes);
      if (at == places.end() || at->second.empty()) continue;
      hand_on(left[at->second.back()], *tensor, reads);
      left[at->second.back()] = kNone;
      at->second.pop_back();
      tensor = nullptr;
    }
    std::erase(tensors, nullptr);
    std::erase(left, kNone);
  }

  /// Pairs tensors and dependencies in order.
  void match_by_place(std::vector<const NamedTensor*>& tensors, std::vector<std::uint32_t>& left,
                      std::vector<std::uint32_t>& reads) {
    const std::size_t pairs = std::min(tensors.size(), left.size());
    for (std::size_t k = 0; k < pairs; ++k) hand_on(left[k], *tensors[k], reads);
    tensors.erase(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(pairs));
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(pairs));
  }

  void hand_on(std::uint32_t node, const NamedTensor& tensor, std::vector<std::uint32_t>& reads) {
    for (const std::uint32_t s : results_[node]) {
      // A collective does not state the size of its result; its reader does.
      if (collected_.count(s) != 0) {
        draft_.storage(s).bytes = std::max(draft_.storage(s).bytes, tensor.bytes);
      }
      read(s, reads);
    }
    // Once per node, not per result: a name may be as long as the file.
    if (!results_[node].empty()) named_.emplace(tensor.name, results_[node].front());
  }

  std::uint32_t from_outside(const NamedTensor& tensor) {
    const auto known = named_.find(tensor.name);
    if (known != named_.end()) return known->second;
    // If names have no batches, a tensor that no node makes counts as part of the model.
    const auto kind = batched_ ? StorageKind::kInput : StorageKind::kWeight;
    return named_.emplace(tensor.name, add_storage(tensor.name, tensor.bytes, kind)).first->second;
  }

  [[nodiscard]] std::string phase_of(std::string_view node_name) const {
    const std::string_view path = node_name.substr(0, node_name.find('@'));
    if (!batched_) return "";
    if (micro_batch_prefix(path) == 0) return "optimizer";
    return is_backward(last_part(path)) ? "backward" : "forward";
  }

  void write_outputs(std::uint32_t i, DraftOp& op) {
    for (const NamedTensor& tensor : outputs_[i]) {
      const auto parameter = parameters_.find(weight_name(tensor.path));
      const bool updates = parameter != parameters_.end() && !is_batched(tensor);
      if (updates) {
        update(tensor, parameter->first, parameter->second, op);
        results_[i].push_back(parameter->second.weight);
        continue;
      }
      const auto kind =
          batched_ && !is_batched(tensor) ? StorageKind::kGradient : StorageKind::kActivation;
      auto [at, fresh] = named_.emplace(tensor.name, kNone);
      if (fresh) at->second = add_storage(tensor.name, tensor.bytes, kind);
      op.writes.push_back(at->second);
      results_[i].push_back(at->second);
    }
  }

  void update(const NamedTensor& tensor, const std::string& name, Parameter& parameter,
              DraftOp& op) {
    parameter.weight = weight(tensor);
    parameter.op = static_cast<std::uint32_t>(draft_.ops().size());
    op.writes.push_back(parameter.weight);
    if (parameter.state_bytes == 0) return;
    const std::uint32_t state =
        add_storage(name + ".state", parameter.state_bytes, StorageKind::kOptimizerState);
    read(state, op.reads);
    op.writes.push_back(state);
  }

  void add_collective(std::uint32_t i, DraftOp& op) {
    constexpr std::uint64_t kAllReduce = 0;
    const ChakraNode& node = trace_.nodes[i];
    op.communication = true;
    op.bytes = op.network_bytes = static_cast<double>(node.communicated_bytes);
    if (node.type != ChakraType::kCollective) return;
    op.group = node.group.empty() ? "ranks" : std::string(node.group);
    if (node.collective == kAllReduce) {
      op.writes = op.reads;
      results_[i] = op.reads;
      return;
    }
    const std::uint32_t result = add_storage(node.name, 0, StorageKind::kActivation);
    collected_.emplace(result, op.reads.empty() ? 0 : draft_.storage(op.reads.front()).bytes);
    op.writes.push_back(result);
    results_[i].push_back(result);
  }

  void add_node(std::uint32_t i) {
    const ChakraNode& node = trace_.nodes[i];
    ++reader_;
    DraftOp op;
    op.name = node.name;
    op.phase = phase_of(node.name);
    op.duration_ns = node.duration_ns;
    op.flops = static_cast<double>(node.flops);
    op.fixed = node.type != ChakraType::kCompute;
    op.reads = resolve_inputs(i);
    write_outputs(i, op);
    if (op.fixed) add_collective(i, op);
    const auto in_place = [this](std::uint32_t s) { return is_read(s); };
    op.recomputable = !op.fixed && op.phase != "optimizer" &&
                      std::none_of(op.writes.begin(), op.writes.end(), in_place);
    for (const std::uint32_t before : dependencies_[i]) {
      if (op_of_[before] != kNone && !is_read_from(before)) {
        op.after.push_back(op_of_[before]);
      }
    }
    collectives_ += op.fixed ? 1 : 0;
    op_of_[i] = draft_.add_op(std::move(op));
  }

  /// A node that is not an op (metadata, a memory transfer of another plan) passes its dependencies
  /// on to the nodes that wait for it.
  void pass_through(std::uint32_t i) {
    ++passed_;
    for (const std::uint32_t before : dependencies_[i]) {
      results_[i].insert(results_[i].end(), results_[before].begin(), results_[before].end());
    }
  }

  /// Counts the dependencies that nodes pass on, since each node scans them and may copy them: a
  /// file of a few megabytes could make their number quadratic.
  Result<void> count_handed_on(std::uint32_t i) {
    for (const std::uint32_t before : dependencies_[i]) handed_on_ += results_[before].size();
    if (handed_on_ <= kOperandsMax) return {};
    return Error(Errc::kOutOfRange, describe_node(trace_.nodes[i]) +
                                        ": the dependencies pass on more than " +
                                        std::to_string(kOperandsMax) + " tensors");
  }

  void settle_collectives() {
    for (const auto& [storage, input_bytes] : collected_) {
      if (draft_.storage(storage).bytes == 0) draft_.storage(storage).bytes = input_bytes;
    }
  }

  /// Whether only one parameter has this prefix. Then no weight is examined for two of them.
  [[nodiscard]] bool is_alone_below(const std::string& prefix) const {
    const auto first = parameters_.lower_bound(prefix);
    const auto second = std::next(first);
    return second == parameters_.end() || !second->first.starts_with(prefix);
  }

  /// A parameter of a layer ("transformer.3._sharded_weight") that is as large as all weights of
  /// the layer is those weights.
  void split_parameters() {
    for (const auto& [name, parameter] : parameters_) {
      const auto dot = name.rfind('.');
      if (parameter.op == kNone || dot == std::string::npos) continue;
      const std::string prefix = name.substr(0, dot + 1);
      if (!is_alone_below(prefix)) continue;
      std::vector<std::uint32_t> pieces;
      std::uint64_t bytes = 0;
      for (auto at = weights_.lower_bound(prefix);
           at != weights_.end() && at->first.starts_with(prefix); ++at) {
        if (at->second == parameter.weight) continue;
        pieces.push_back(at->second);
        bytes += draft_.storage(at->second).bytes;
      }
      if (pieces.empty() || bytes != parameter.weight_bytes) continue;
      DraftOp& op = draft_.op(parameter.op);
      for (auto* list : {&op.reads, &op.writes}) {
        if (std::erase(*list, parameter.weight) == 0) continue;
        list->insert(list->end(), pieces.begin(), pieces.end());
      }
      draft_.storage(parameter.weight).persistent = false;  // no op names it any more
      draft_.storage(parameter.weight).bytes = 0;
    }
  }

  void remark() {
    if (collectives_ > 0) {
      draft_.remark(
          std::to_string(collectives_) +
          " collectives, sends and receives never move; those without a duration take "
          "their bytes over the network's bandwidth, or the device's if none is given; their "
          "results have the sizes that their readers name.");
    }
    if (passed_ > 0) {
      draft_.remark(std::to_string(passed_) + " nodes that compute nothing are left out.");
    }
    if (unknown_dependencies_ > 0) {
      draft_.remark(std::to_string(unknown_dependencies_) +
                    " dependencies name nodes that are missing in the trace.");
    }
  }

  const ChakraTrace& trace_;
  Draft& draft_;
  std::vector<std::vector<NamedTensor>> inputs_;
  std::vector<std::vector<NamedTensor>> outputs_;
  std::vector<std::vector<std::uint32_t>> dependencies_;
  std::set<std::string_view> made_;  ///< names in the outputs of a node
  std::map<std::string_view, std::uint32_t> named_;
  std::map<std::string, std::uint32_t> weights_;
  std::map<std::string, Parameter> parameters_;
  std::map<std::uint32_t, std::uint64_t>
      collected_;  ///< results of collectives: bytes of the input
  std::vector<std::uint32_t> op_of_;
  std::vector<std::vector<std::uint32_t>> results_;
  std::vector<std::uint64_t> read_by_;  ///< per storage: the last node that reads it
  std::uint64_t reader_ = 0;
  std::uint64_t collectives_ = 0;
  std::uint64_t passed_ = 0;
  std::uint64_t handed_on_ = 0;  ///< results of the dependencies of all nodes so far
  std::uint64_t unknown_dependencies_ = 0;
  bool batched_ = false;
};

}  // namespace

Result<void> draft_named_tensors(const ChakraTrace& trace, Draft& draft) {
  return NamedTensors(trace, draft).run();
}

}  // namespace ho::importers
