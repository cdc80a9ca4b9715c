#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tools/importers/draft.hpp"
#include "tools/importers/onnx/onnx_model.hpp"
#include "tools/importers/onnx/onnx_shapes.hpp"
#include "tools/importers/onnx/onnx_weights.hpp"

namespace ho::importers {

namespace {

/// A tensor of the graph during the walk over its nodes.
struct Value {
  OnnxTensor known;
  std::uint32_t storage = kNone;  ///< created when an op first uses the tensor as data
  bool constant = false;          ///< the same in every step; computed ahead and not by an op
};

class GraphWalk {
 public:
  GraphWalk(const OnnxModel& model, const Options& options, Draft& draft)
      : model_(model), options_(options), draft_(draft) {}

  Result<void> run() {
    for (const auto* list : {&model_.infos, &model_.outputs}) {
      for (const OnnxValueInfo& info : *list) infos_.emplace(info.name, &info);
    }
    for (const auto& [name, tensor] : model_.initializers) {
      values_[name] = Value{tensor, kNone, true};
    }
    if (auto known = check_dimensions(); !known) return known;
    if (auto added = add_inputs(); !added) return added;
    lost_ = lost_weights(model_);
    biases_ = bias_names(model_);
    for (const OnnxNode& node : model_.nodes) {
      if (auto added = add_node(node); !added) {
        return added.error().at("node " + clean_name(node.name) + " (" + clean_name(node.op) + ")");
      }
    }
    mark_outputs();
    doubt_versions();
    draft_.remark(std::to_string(folded_) +
                  " nodes that compute only with constants or only rename a tensor are left out.");
    if (missing_ > 0) {
      draft_.remark(std::to_string(missing_) +
                    " tensors without a producer count as weights that were removed from the file; "
                    "their sizes "
                    "are derived from the rest of the file.");
    }
    return {};
  }

 private:
  /// Newer versions may have operators whose sizes are inferred wrongly, so they are not refused
  /// but named.
  void doubt_versions() {
    // The newest that a test imports: PyTorch 1.13 writes them.
    constexpr std::int64_t kIrVersionTested = 8;
    constexpr std::int64_t kOpsetTested = 14;
    const auto doubt = [this](const char* what, std::int64_t version, std::int64_t tested) {
      if (version <= tested) return;
      draft_.remark("The model's " + std::string(what) + " is " + std::to_string(version) +
                    "; versions above " + std::to_string(tested) +
                    " are not tested: check sizes and kinds.");
    };
    doubt("IR version", model_.ir_version, kIrVersionTested);
    doubt("opset", model_.opset, kOpsetTested);
  }

  /// A name that the model does not have is a slip of its writer.
  [[nodiscard]] Result<void> check_dimensions() const {
    std::set<std::string_view> names;
    for (const auto* list : {&model_.inputs, &model_.infos, &model_.outputs}) {
      for (const OnnxValueInfo& info : *list) {
        if (!info.sizes) continue;
        for (const OnnxSize& size : *info.sizes) names.insert(size.name);
      }
    }
    names.erase("");
    constexpr std::size_t kNamesShown = 10;
    std::size_t shown = 0;
    std::string known;
    for (const std::string_view name : names) {
      if (shown++ == kNamesShown) break;
      known += (known.empty() ? "" : ", ") + clean_name(name);
    }
    if (names.size() > kNamesShown) known += " and others";
    for (const auto& [name, size] : options_.dimensions) {
      if (names.count(name) != 0) continue;
      return Error(Errc::kInvalidArgument, "--dim " + clean_name(name) +
                                               ": no dimension has this name; the model names " +
                                               (known.empty() ? "none" : known));
    }
    return {};
  }

  /// Replaces named sizes by the values in the options.
  Result<OnnxTensor> known_of(const OnnxValueInfo& info) {
    OnnxTensor out;
    out.type = info.type;
    if (!info.sizes) return out;
    std::vector<std::uint64_t> dims;
    for (const OnnxSize& size : *info.sizes) {
      const auto named = options_.dimensions.find(std::string(size.name));
      if (size.number) {
        dims.push_back(*size.number);
      } else if (named != options_.dimensions.end()) {
        dims.push_back(named->second);
      } else if (size.name.empty()) {
        return out;
      } else {
        unsized_ = size.name;
        return out;
      }
    }
    out.dims = std::move(dims);
    return out;
  }

  Error no_size(std::string_view tensor) const {
    std::string text = "the size of tensor " + clean_name(tensor) + " is unknown";
    if (!unsized_.empty()) {
      text += "; dimension \"" + clean_name(unsized_) + "\" has only a name: give --dim NAME=SIZE";
    }
    return Error(Errc::kInvalidArgument, text);
  }

  Result<void> add_inputs() {
    weights_ = weight_inputs(model_);
    for (const OnnxValueInfo& info : model_.inputs) {
      if (values_.count(info.name) != 0) continue;  // the default value of an initializer
      auto known = known_of(info);
      if (!known) return known.error();
      if (!onnx_bytes(*known)) return no_size(info.name);
      Value value{*std::move(known), kNone, weights_.count(info.name) != 0};
      if (!value.constant) value.storage = add_storage(info.name, value, StorageKind::kInput);
      values_[info.name] = std::move(value);
    }
    return {};
  }

  std::uint32_t add_storage(std::string_view name, const Value& value, StorageKind kind) {
    Storage storage;
    storage.name = name;
    storage.bytes = onnx_bytes(value.known).value_or(0);
    storage.kind = kind;
    storage.persistent = kind == StorageKind::kWeight;
    return draft_.add_storage(std::move(storage));
  }

  /// The caller of the model reads what its nodes compute for it.
  void mark_outputs() {
    for (const OnnxValueInfo& info : model_.outputs) {
      const auto at = values_.find(info.name);
      if (at == values_.end() || at->second.storage == kNone) continue;
      Storage& storage = draft_.storage(at->second.storage);
      if (storage.kind != StorageKind::kActivation) continue;
      storage.kind = StorageKind::kOutput;
      storage.persistent = true;
    }
  }

  Result<void> add_node(const OnnxNode& node) {
    static const OnnxTensor kAbsent;
    std::vector<const OnnxTensor*> inputs;
    bool constant = !node.op.starts_with("Random");
    for (const std::string_view name : node.inputs) {
      if (name.empty()) {
        inputs.push_back(&kAbsent);
        continue;
      }
      const auto at = values_.find(name);
      if (at == values_.end()) {
        inputs.push_back(nullptr);
        continue;
      }
      inputs.push_back(&at->second.known);
      // The size of a tensor can be known before the step even if its contents are not.
      constant = constant && (at->second.constant || at->second.known.values || node.op == "Shape");
    }
    if (auto added = add_missing(node, inputs); !added) return added;
    if (auto counted = count_sizes(node, inputs); !counted) return counted;
    auto outputs = infer_outputs(node, inputs);
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      auto known = info_of(node.outputs[k]);
      if (!known) return known.error();
      if (known->dims) {
        known->values = outputs[k].values;
        outputs[k] = *std::move(known);
      }
    }
    if (constant) return add_constants(node, std::move(outputs));
    static constexpr std::array<std::string_view, 6> kRenames = {"Identity",  "Reshape", "Squeeze",
                                                                 "Unsqueeze", "Flatten", "Dropout"};
    const bool renames = !node.inputs.empty() && !node.inputs.front().empty() &&
                         std::find(kRenames.begin(), kRenames.end(), node.op) != kRenames.end();
    if (renames && node.outputs.size() == 1 && node.domain.empty()) {
      return add_alias(node, outputs.front());
    }
    return add_op(node, inputs, outputs);
  }

  /// Tensors without a producer are weights whose data and declaration were removed from the file,
  /// if it still reveals their sizes.
  Result<void> add_missing(const OnnxNode& node, std::vector<const OnnxTensor*>& inputs) {
    static const OnnxTensor kUnknown;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] != nullptr) continue;
      const std::string_view name = node.inputs[i];
      std::optional<OnnxTensor> known;
      if (lost_.count(name) != 0) {
        auto own = info_of(name);
        if (!own) return own.error();
        auto result = info_of(node.outputs.empty() ? "" : node.outputs.front());
        if (!result) return result.error();
        std::vector<const OnnxTensor*> others = inputs;
        std::replace(others.begin(), others.end(), static_cast<const OnnxTensor*>(nullptr),
                     &kUnknown);
        known = own->dims ? std::optional(*std::move(own))
                          : missing_weight(node, i, others, *result, biases_, model_.opset);
      }
      if (!known || !onnx_bytes(*known) || !is_weight_type(known->type, node)) {
        return Error(Errc::kInvalidArgument,
                     "reads " + clean_name(name) + ", which no earlier node produces");
      }
      ++missing_;
      inputs[i] = &values_.emplace(name, Value{*std::move(known), kNone, true}).first->second.known;
    }
    return {};
  }

  /// The type and sizes in the file's value_info; empty if it has none.
  Result<OnnxTensor> info_of(std::string_view name) {
    const auto info = infos_.find(name);
    if (name.empty() || info == infos_.end()) return OnnxTensor{};
    return known_of(*info->second);
  }

  /// Limits the work: a Split whose outputs take two bytes each copies the sizes of its input, up
  /// to 64, for each of them.
  Result<void> count_sizes(const OnnxNode& node, const std::vector<const OnnxTensor*>& inputs) {
    std::uint64_t rank = 1;
    for (const OnnxTensor* const input : inputs) {
      if (input->dims) rank = std::max<std::uint64_t>(rank, input->dims->size());
    }
    sizes_ += rank * node.outputs.size();
    if (sizes_ <= kOperandsMax) return {};
    return Error(Errc::kOutOfRange,
                 "more than " + std::to_string(kOperandsMax) + " sizes of outputs in all nodes");
  }

  Result<void> add_constants(const OnnxNode& node, std::vector<OnnxTensor> outputs) {
    ++folded_;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      Value value{std::move(outputs[k]), kNone, true};
      // A transposed or renamed weight is still the same weight. A quantized one keeps its small
      // size, since the kernel that reads it dequantizes it.
      const bool turns = node.op == "Transpose" || node.op == "Identity" || node.op == "Reshape" ||
                         node.op == "DequantizeLinear";
      if (turns && k == 0 && !node.inputs.empty()) value.storage = storage_of(node.inputs.front());
      if (auto defined = define(node.outputs[k], std::move(value)); !defined) return defined;
    }
    return {};
  }

  Result<void> add_alias(const OnnxNode& node, const OnnxTensor& known) {
    ++folded_;
    Value value{known, storage_of(node.inputs.front()), false};
    return define(node.outputs.front(), std::move(value));
  }

  Result<void> define(std::string_view name, Value value) {
    if (name.empty()) return {};
    if (!values_.emplace(name, std::move(value)).second) {
      return Error(Errc::kInvalidArgument, "makes " + clean_name(name) + ", which exists already");
    }
    return {};
  }

  /// The storage of a tensor that an op uses; kNone for a small constant, which is an argument of a
  /// kernel and not memory.
  std::uint32_t storage_of(std::string_view name) {
    constexpr std::uint64_t kArgumentBytesMax = 64;
    if (name.empty()) return kNone;
    Value& value = values_.at(name);
    if (value.storage != kNone || !value.constant) return value.storage;
    if (onnx_bytes(value.known).value_or(0) <= kArgumentBytesMax) return kNone;
    return value.storage = add_storage(name, value, StorageKind::kWeight);
  }

  Result<void> add_op(const OnnxNode& node, const std::vector<const OnnxTensor*>& inputs,
                      const std::vector<OnnxTensor>& outputs) {
    DraftOp op;
    op.name = node.name.empty() ? std::string(node.op) : std::string(node.name);
    op.phase = "forward";
    op.flops = onnx_flops(node, inputs, outputs);
    op.recomputable = !node.op.starts_with("Random") && node.op != "Dropout" &&
                      node.op != "Multinomial" && node.op != "Bernoulli";
    for (const std::string_view name : node.inputs) {
      if (name.empty()) continue;
      const std::uint32_t storage = storage_of(name);
      if (storage != kNone) op.reads.push_back(storage);
    }
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      if (node.outputs[k].empty()) continue;
      Value value{outputs[k], kNone, false};
      if (!onnx_bytes(value.known)) return no_size(node.outputs[k]);
      value.storage = add_storage(node.outputs[k], value, StorageKind::kActivation);
      op.writes.push_back(value.storage);
      if (auto defined = define(node.outputs[k], std::move(value)); !defined) return defined;
    }
    // Gather reads only the selected rows: as many bytes as it writes.
    if (node.op == "Gather" && !outputs.empty()) {
      op.bytes = 2 * static_cast<double>(onnx_bytes(outputs.front()).value_or(0));
    }
    draft_.add_op(std::move(op));
    return {};
  }

  const OnnxModel& model_;
  const Options& options_;
  Draft& draft_;
  std::map<std::string_view, Value> values_;
  std::map<std::string_view, const OnnxValueInfo*> infos_;
  std::set<std::string_view> weights_;
  std::string_view unsized_;         ///< a dimension with only a name
  std::set<std::string_view> lost_;  ///< weights without data and declaration
  std::set<std::string_view> biases_;
  std::uint64_t missing_ = 0;
  std::uint64_t folded_ = 0;
  std::uint64_t sizes_ = 0;  ///< upper limit for sizes of outputs
};

}  // namespace

Result<Imported> import_onnx(std::string_view bytes, const Options& options) {
  const auto model = decode_onnx(bytes);
  if (!model) return model.error();
  Draft draft;
  if (auto walked = GraphWalk(*model, options, draft).run(); !walked) return walked.error();
  return std::move(draft).finish("onnx " + std::string(model->graph_name), options.rates);
}

}  // namespace ho::importers
