#include "tools/importers/pytorch/trace_replay.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"
#include "tools/importers/pytorch/operator_rules.hpp"
#include "tools/importers/pytorch/storage_lives.hpp"

namespace ho::importers {

namespace {

constexpr std::size_t kNoNode = SIZE_MAX;

/// Facts about a node from its callers, and about communication from its kernels.
struct Setting {
  Phase phase = Phase::kForward;
  bool accumulates = false;  ///< below autograd's AccumulateGrad
  bool pair = false;         ///< a send or receive
  std::string_view group;    ///< the process group of a collective; may be empty
};

/// A call that has begun but not ended.
struct Frame {
  std::size_t node = 0;
  std::uint64_t begin = 0;           ///< the moment it began
  std::vector<std::uint32_t> lives;  ///< parallel to the node's inputs
  double callees_ns = 0;
  bool communicated = false;  ///< a nested op is communication
};

/// The effects of a call if it were an op.
struct Effects {
  std::vector<std::uint32_t> reads;
  std::vector<std::uint32_t> writes;
  double bytes = 0;
  double read_bytes = 0;
  double written_bytes = 0;
  double share = 1;  ///< fraction of the call's time
  bool in_place = false;
};

/// Facts for all parts of a call. Computed once: an operator on lists may have a million parts, and
/// each would take as long as the whole call.
struct Call {
  OperatorRules rules;
  std::string name;
  std::vector<bool> written;      ///< per argument of the signature
  bool in_place = false;          ///< writes storages that are both input and output
  std::vector<bool> also_output;  ///< per input: an output has the same storage
  std::vector<bool> also_input;   ///< per output
  double flops = 0;
};

/// The operands of a call that one op is about.
struct Part {
  std::vector<std::size_t> inputs;
  std::vector<std::size_t> outputs;
};

double bytes_of(const TensorRef& tensor) {
  return static_cast<double>(tensor.elements) * static_cast<double>(tensor.element_bytes);
}

bool is_communication(const TraceNode& node) {
  return node.collective || node.name.starts_with("c10d") || node.name.starts_with("nccl") ||
         node.name == "record_param_comms";
}

/// Sends and receives concern two processes.
bool is_pair(const TraceNode& node) {
  constexpr std::string_view kPairs[] = {"send", "recv", "Send", "Recv"};
  return node.pair ||
         (is_communication(node) &&
          std::any_of(std::begin(kPairs), std::end(kPairs), [&](std::string_view word) {
            return node.name.find(word) != std::string_view::npos;
          }));
}

bool is_operator(const TraceNode& node) {
  return !node.schema.empty() || node.kernel || node.collective ||
         (!node.outputs.empty() && !node.name.starts_with("autograd::"));
}

class Replay {
 public:
  Replay(const TensorTrace& trace, Draft& draft) : trace_(trace), draft_(draft) {
    settings_.resize(trace.nodes.size());
    kernel_ns_.resize(trace.nodes.size());
  }

  Result<void> run() {
    for (std::size_t i = 0; i < trace_.nodes.size(); ++i) settle(i);
    for (std::size_t i = 0; i < trace_.nodes.size(); ++i) assign_kernel(i);
    count_callees();
    for (std::size_t i = 0; i < trace_.nodes.size(); ++i) {
      if (is_counted_elsewhere(i)) continue;
      if (auto begun = begin_call(i); !begun) return begun;
      if (auto ended = end_calls(i); !ended) return ended;
    }
    HO_CHECK(open_.empty());
    lives_.give_kinds(draft_);
    return {};
  }

 private:
  [[nodiscard]] std::size_t find(std::uint64_t id) const {
    const auto at = std::lower_bound(
        trace_.nodes.begin(), trace_.nodes.end(), id,
        [](const TraceNode& node, std::uint64_t wanted) { return node.id < wanted; });
    if (at == trace_.nodes.end() || at->id != id) return kNoNode;
    return static_cast<std::size_t>(at - trace_.nodes.begin());
  }

  /// The caller of a node. It is always an earlier node, so callers form no cycle.
  [[nodiscard]] std::size_t parent_of(std::size_t i) const {
    const TraceNode& node = trace_.nodes[i];
    return node.parent < node.id ? find(node.parent) : kNoNode;
  }

  void settle(std::size_t i) {
    const TraceNode& node = trace_.nodes[i];
    const std::string& name = node.name;
    const std::size_t parent = parent_of(i);
    Setting setting = parent == kNoNode ? Setting{} : settings_[parent];
    if (name.starts_with("Optimizer.step")) setting.phase = Phase::kOptimizer;
    if (name.starts_with("Optimizer.zero_grad")) setting.phase = Phase::kZeroGrad;
    if (name.starts_with("autograd::engine::evaluate_function")) setting.phase = Phase::kBackward;
    if (name.find("AccumulateGrad") != std::string::npos) setting.accumulates = true;
    // The op is the record within the c10d call, and a record's name does not say what it records.
    if (is_pair(node)) setting.pair = true;
    if (!node.group.empty()) setting.group = node.group;
    settings_[i] = setting;
  }

  /// Adds a kernel's time to the operator that launched it, and marks the kernel as counted (-1).
  void assign_kernel(std::size_t i) {
    constexpr int kLevelsMax = 64;
    const TraceNode& kernel = trace_.nodes[i];
    if (!kernel.kernel) return;
    std::size_t above = parent_of(i);
    for (int level = 0; level < kLevelsMax && above != kNoNode; ++level) {
      // Records of c10d calls have tensors but no signature.
      const TraceNode& caller = trace_.nodes[above];
      if (!caller.schema.empty() || (is_communication(caller) && is_operator(caller))) {
        kernel_ns_[above] += kernel.duration_ns.value_or(0);
        kernel_ns_[i] = -1;
        have_kernels_ = true;
        note_kernel(kernel, settings_[above]);
        return;
      }
      above = parent_of(above);
    }
  }

  /// Chakra has the type and the group on the kernel. The kernel's name does not count: NCCL's
  /// kernel "SendRecv" does all-to-all, too.
  static void note_kernel(const TraceNode& kernel, Setting& operation) {
    if (kernel.pair) operation.pair = true;
    if (operation.group.empty()) operation.group = kernel.group;
  }

  [[nodiscard]] bool is_counted_elsewhere(std::size_t i) const {
    return trace_.nodes[i].kernel && kernel_ns_[i] < 0;
  }

  /// The innermost caller of `i` whose call is still open; kNoNode if there is none.
  [[nodiscard]] std::size_t open_parent_of(std::size_t i) const {
    const std::size_t parent = parent_of(i);
    return parent == kNoNode || is_counted_elsewhere(parent) ? kNoNode : parent;
  }

  void count_callees() {
    callees_left_.assign(trace_.nodes.size(), 0);
    for (std::size_t i = 0; i < trace_.nodes.size(); ++i) {
      const std::size_t parent = is_counted_elsewhere(i) ? kNoNode : open_parent_of(i);
      if (parent != kNoNode) ++callees_left_[parent];
    }
  }

  /// Ends a call that has no callees left, then each caller whose last callee has ended. A stack
  /// does not suffice: calls of several threads interleave, and a trace may not record the threads.
  Result<void> end_calls(std::size_t i) {
    while (i != kNoNode && callees_left_[i] == 0) {
      if (auto ended = end_call(i); !ended) return ended;
      i = open_parent_of(i);
      if (i != kNoNode) --callees_left_[i];
    }
    return {};
  }

  Error overflow(const TraceNode& node) {
    return Error(Errc::kInvalidArgument, "node " + std::to_string(node.id) + " (" +
                                             clean_name(node.name) +
                                             "): a tensor has more than 2^50 bytes");
  }

  /// Bytes from the start of a storage to the end of a tensor, as if the tensor were dense.
  static std::optional<std::uint64_t> extent_of(const TensorRef& tensor) {
    const double bytes =
        (static_cast<double>(tensor.offset) + static_cast<double>(tensor.elements)) *
        static_cast<double>(tensor.element_bytes);
    if (bytes > static_cast<double>(kBytesMax)) return std::nullopt;
    return (tensor.offset + tensor.elements) * tensor.element_bytes;
  }

  Result<void> begin_call(std::size_t i) {
    const TraceNode& node = trace_.nodes[i];
    Frame frame;
    frame.node = i;
    frame.begin = ++now_;
    for (const TensorRef& tensor : node.inputs) {
      const auto extent = extent_of(tensor);
      if (!extent) return overflow(node);
      const std::uint32_t life = lives_.use(tensor, *extent, now_, draft_);
      frame.lives.push_back(life);
      if (settings_[i].accumulates && node.schema.empty()) lives_.at(life).accumulated = true;
    }
    const auto weights = weight_arguments(node.schema);
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      const std::uint32_t argument = node.inputs[k].argument;
      Life& life = lives_.at(frame.lives[k]);
      if (argument < weights.size() && weights[argument]) life.weight_argument = true;
      if (argument > 0 && !node.schema.empty()) life.later_argument = true;
    }
    open_.emplace(i, std::move(frame));
    return {};
  }

  /// Marks exactly these lives, for is_marked().
  void mark(const std::vector<std::uint32_t>& lives) {
    ++mark_;
    for (const std::uint32_t n : lives) lives_.at(n).mark = mark_;
  }
  [[nodiscard]] bool is_marked(std::uint32_t n) { return lives_.at(n).mark == mark_; }

  /// The lives of the node's outputs. Creates those that begin with this call.
  Result<std::vector<std::uint32_t>> resolve_outputs(const Frame& frame) {
    const TraceNode& node = trace_.nodes[frame.node];
    const bool allocates = rules_of(node.name).allocates;
    const std::string name = clean_name(node.name) + "#" + std::to_string(node.id);
    std::vector<std::uint32_t> out;
    mark(frame.lives);
    for (const TensorRef& tensor : node.outputs) {
      const auto extent = extent_of(tensor);
      if (!extent) return overflow(node);
      const auto current = lives_.current(tensor.storage);
      const bool passed = current && is_marked(*current);
      const bool made_inside = current && lives_.at(*current).born >= frame.begin;
      if (passed || made_inside) {
        Life& life = lives_.at(*current);
        if (passed) life.views.insert(tensor.tensor);
        // First seen where it is allocated, so it did not exist before.
        if (allocates && life.born >= frame.begin) life.before_step = false;
        if (!passed || allocates) life.bytes = std::max(life.bytes, *extent);
        out.push_back(*current);
      } else if (is_operator(node)) {
        out.push_back(lives_.begin(tensor, *extent, ++now_, name, draft_));
      }
    }
    return out;
  }

  /// @param outputs  from resolve_outputs()
  Call call_of(const Frame& frame, const OperatorRules& rules,
               const std::vector<std::uint32_t>& outputs) {
    const TraceNode& node = trace_.nodes[frame.node];
    Call out;
    out.rules = rules;
    out.name = clean_name(node.name);
    out.written = written_arguments(node.schema);
    // Signatures of collectives do not show that they write.
    out.in_place = node.schema.empty() || is_communication(node);
    mark(outputs);
    for (const std::uint32_t life : frame.lives) out.also_output.push_back(is_marked(life));
    mark(frame.lives);
    for (const std::uint32_t life : outputs) out.also_input.push_back(is_marked(life));
    return out;
  }

  [[nodiscard]] Effects effects_of(const Frame& frame, const Call& call,
                                   const std::vector<std::uint32_t>& outputs, const Part& part) {
    const TraceNode& node = trace_.nodes[frame.node];
    Effects out;
    for (const std::size_t k : part.inputs) {
      const TensorRef& tensor = node.inputs[k];
      const std::uint32_t life = frame.lives[k];
      const bool writes =
          (tensor.argument < call.written.size() && call.written[tensor.argument]) ||
          (call.in_place && call.also_output[k]);
      const bool whole =
          call.rules.overwrites && bytes_of(tensor) >= static_cast<double>(lives_.at(life).bytes);
      const bool reads =
          writes ? !whole
                 : call.rules.reads_inputs && !(call.rules.only_first && tensor.argument > 0);
      if (writes) out.writes.push_back(life);
      if (reads) out.reads.push_back(life);
      out.in_place = out.in_place || (writes && reads);
      if (reads) out.read_bytes += bytes_of(tensor);
      if (writes) out.written_bytes += bytes_of(tensor);
    }
    for (const std::size_t k : part.outputs) {
      if (call.also_input[k]) continue;
      out.writes.push_back(outputs[k]);
      out.written_bytes += bytes_of(node.outputs[k]);
    }
    out.bytes = out.read_bytes + out.written_bytes;
    return out;
  }

  /// The whole call or, for an operator on lists of tensors that treats each index on its own, one
  /// part per index: a fused op would need a budget for all parameters and their state.
  static std::vector<Part> parts_of(const TraceNode& node) {
    constexpr std::size_t kSharedMax = 8;
    Part whole;
    std::map<std::uint32_t, Part> by_place;
    const auto sort = [&by_place](const std::vector<TensorRef>& tensors,
                                  std::vector<std::size_t>& all,
                                  std::vector<std::size_t> Part::*list) {
      for (std::size_t k = 0; k < tensors.size(); ++k) {
        all.push_back(k);
        (by_place[tensors[k].element].*list).push_back(k);
      }
    };
    sort(node.inputs, whole.inputs, &Part::inputs);
    sort(node.outputs, whole.outputs, &Part::outputs);
    Part shared;
    if (const auto at = by_place.find(0); at != by_place.end()) {
      shared = at->second;
      by_place.erase(at);
    }
    if (node.name.find("_foreach_") == std::string::npos &&
        node.name.find("_fused_") == std::string::npos) {
      return {whole};
    }
    const bool even = std::all_of(by_place.begin(), by_place.end(), [&](const auto& entry) {
      return entry.second.inputs.size() == by_place.begin()->second.inputs.size() &&
             entry.second.outputs.size() == by_place.begin()->second.outputs.size();
    });
    if (by_place.size() < 2 || !even || shared.inputs.size() > kSharedMax ||
        !shared.outputs.empty()) {
      return {whole};
    }
    std::vector<Part> parts;
    for (auto& [place, part] : by_place) {
      part.inputs.insert(part.inputs.end(), shared.inputs.begin(), shared.inputs.end());
      parts.push_back(std::move(part));
    }
    return parts;
  }

  /// Whether the nested ops have all the effects of the call.
  [[nodiscard]] bool is_covered(const Frame& frame, const Effects& effects) {
    const auto read = [&](std::uint32_t n) { return lives_.at(n).last_read >= frame.begin; };
    const auto written = [&](std::uint32_t n) { return lives_.at(n).last_write >= frame.begin; };
    return std::all_of(effects.reads.begin(), effects.reads.end(), read) &&
           std::all_of(effects.writes.begin(), effects.writes.end(), written);
  }

  Result<void> end_call(std::size_t i) {
    const auto at = open_.find(i);
    HO_CHECK(at != open_.end());
    const Frame frame = std::move(at->second);
    open_.erase(at);
    const TraceNode& node = trace_.nodes[frame.node];
    double spent_ns = frame.callees_ns;
    bool communicated = frame.communicated;
    const auto outputs = resolve_outputs(frame);
    if (!outputs) return outputs.error();
    const OperatorRules rules = rules_of(node.name);
    if (is_operator(node) && rules.moves_data && !rules.allocates) {
      Call call = call_of(frame, rules, *outputs);
      const auto parts = parts_of(node);
      std::vector<Effects> effects;
      double bytes = 0;
      bool does = false;
      bool covered = true;
      for (const Part& part : parts) {
        Effects& one = effects.emplace_back(effects_of(frame, call, *outputs, part));
        bytes += one.bytes;
        does = does || !one.writes.empty() || (!one.reads.empty() && outputs->empty());
        covered = covered && is_covered(frame, one);
      }
      // A c10d call and its record are one collective, although they name different tensors.
      covered = covered || (frame.communicated && is_communication(node));
      if (does && (kernel_ns_[frame.node] > 0 || !covered)) {
        communicated = communicated || is_communication(node);
        call.flops = flops_of(node);
        for (Effects& one : effects) {
          one.share = bytes > 0 ? one.bytes / bytes : 1.0 / static_cast<double>(effects.size());
          emit(frame, call, std::move(one));
        }
      }
      mark_zeroed(frame, *outputs);
    }
    if (node.duration_ns) spent_ns = *node.duration_ns + (node.exclusive ? frame.callees_ns : 0);
    const std::size_t parent = open_parent_of(i);
    if (parent == kNoNode) return {};
    Frame& caller = open_.at(parent);
    caller.callees_ns += spent_ns;
    caller.communicated = caller.communicated || communicated;
    return {};
  }

  /// The measured duration of the call without nested calls.
  [[nodiscard]] std::optional<double> duration_of(const Frame& frame, double share) const {
    const TraceNode& node = trace_.nodes[frame.node];
    const auto measured_ns = node.duration_ns;
    if (kernel_ns_[frame.node] > 0) return kernel_ns_[frame.node] * share;
    // If kernels were measured, host times are not times of the device.
    if (!measured_ns || (have_kernels_ && !node.kernel)) return std::nullopt;
    // The draft refuses negative durations and those that are not numbers.
    if (!(*measured_ns >= 0)) return measured_ns;
    const double callees_ns = node.exclusive ? 0 : std::min(frame.callees_ns, *measured_ns);
    return (*measured_ns - callees_ns) * share;
  }

  void emit(const Frame& frame, const Call& call, Effects effects) {
    const Setting setting = settings_[frame.node];
    // This op completes the storages that nested ops have begun to fill.
    mark(effects.reads);
    for (const std::uint32_t n : effects.writes) {
      if (lives_.at(n).last_write >= frame.begin && !is_marked(n)) {
        effects.reads.push_back(n);
        effects.in_place = true;
      }
    }
    DraftOp op;
    op.name = call.name;
    op.phase = phase_name(setting.phase);
    op.flops = call.flops * effects.share;
    op.bytes = effects.bytes;
    op.communication = is_communication(trace_.nodes[frame.node]);
    op.network_bytes = std::max(effects.read_bytes, effects.written_bytes);
    op.fixed = op.communication;
    if (op.communication && !setting.pair) {
      op.group = setting.group.empty() ? "ranks" : std::string(setting.group);
    }
    op.recomputable = !call.rules.random && !effects.in_place && !op.fixed &&
                      (setting.phase == Phase::kForward || setting.phase == Phase::kBackward);
    op.duration_ns = duration_of(frame, effects.share);
    const auto numbers = [this](const std::vector<std::uint32_t>& list) {
      std::vector<std::uint32_t> out;
      out.reserve(list.size());
      for (const std::uint32_t n : list) out.push_back(lives_.at(n).storage);
      return out;
    };
    op.reads = numbers(effects.reads);
    op.writes = numbers(effects.writes);
    const std::uint32_t number = draft_.add_op(std::move(op));
    ++now_;
    for (const std::uint32_t n : effects.reads) lives_.note_read(n, now_, setting.phase);
    for (const std::uint32_t n : effects.writes) {
      lives_.note_write(n, now_, setting.phase);
      Life& life = lives_.at(n);
      if (setting.accumulates) life.gradient = true;
      if (effects.reads.empty()) life.setters.push_back(number);
    }
  }

  void mark_zeroed(const Frame& frame, const std::vector<std::uint32_t>& outputs) {
    const std::string& name = trace_.nodes[frame.node].name;
    if (settings_[frame.node].phase != Phase::kOptimizer) return;
    if (name != "aten::zeros_like" && name != "aten::zeros") return;
    for (const std::uint32_t n : outputs) {
      if (lives_.at(n).born >= frame.begin) lives_.at(n).zeroed_by_optimizer = true;
    }
  }

  const TensorTrace& trace_;
  Draft& draft_;
  StorageLives lives_;
  std::vector<Setting> settings_;
  std::vector<double> kernel_ns_;            ///< per node; -1: a kernel that is already counted
  std::map<std::size_t, Frame> open_;        ///< by node: calls that have begun but not ended
  std::vector<std::uint32_t> callees_left_;  ///< per node: its calls that have not ended
  std::uint64_t now_ = 0;
  std::uint64_t mark_ = 0;
  bool have_kernels_ = false;
};

}  // namespace

Result<void> replay_trace(const TensorTrace& trace, Draft& draft) {
  return Replay(trace, draft).run();
}

}  // namespace ho::importers
