#include <limits>
#include <optional>
#include <utility>

#include "tools/importers/bytes/literal_cursor.hpp"
#include "tools/importers/import.hpp"
#include "tools/importers/pytorch/tensor_trace.hpp"

namespace ho::importers {

namespace {

/// Reads the JSON of a trace. In schema 1.0.1 the facts of a node are fields; 1.1 has its arguments
/// in objects {values, shapes, types}, its caller as ctrl_deps, and the rest in a list of
/// attributes.
class JsonTrace {
 public:
  explicit JsonTrace(std::string_view text) : in_(text) {}

  Result<TensorTrace> read() {
    bool have_nodes = false;
    auto read = in_.object([&](std::string_view key) -> Result<void> {
      if (key == "schema") {
        auto schema = in_.string();
        if (!schema) return schema.error();
        if (!known(*schema)) {
          return in_.bad("schema \"" + *schema + "\" is not known; 1.0 and 1.1 are");
        }
        trace_.name = "pytorch-et " + *schema;
        return {};
      }
      if (key != "nodes") return skip();
      have_nodes = true;
      return in_.list([this] { return read_node(); });
    });
    if (!read) return read.error();
    if (!in_.at_end()) return in_.bad("unexpected text after the trace");
    if (!have_nodes) {
      return Error(Errc::kInvalidArgument, "no field \"nodes\": not a PyTorch execution trace");
    }
    return std::move(trace_);
  }

 private:
  /// Schemas with the same first two numbers differ in what is not read here.
  static bool known(std::string_view schema) {
    const std::string_view first = schema.substr(0, 3);
    return (first == "1.0" || first == "1.1") && (schema.size() == 3 || schema[3] == '.');
  }

  Result<void> skip() {
    auto skipped = in_.value();
    if (!skipped) return skipped.error();
    return {};
  }

  Result<void> read_node() {
    if (trace_.nodes.size() >= kNodesMax) {
      return Error(Errc::kOutOfRange, "more than " + std::to_string(kNodesMax) + " nodes");
    }
    TraceNode& node = trace_.nodes.emplace_back();
    std::string_view output_shapes;
    std::optional<double> whole_ns;  // includes nested calls
    std::optional<double> own_ns;
    bool have_id = false;
    auto read = in_.object([&](std::string_view key) -> Result<void> {
      if (key == "id") {
        have_id = true;
        return read_count(node.id);
      }
      if (key == "parent" || key == "ctrl_deps") return read_count(node.parent);
      if (key == "name") return read_string(node.name);
      if (key == "op_schema") return read_string(node.schema);
      if (key == "inputs") return read_arguments(node.inputs, node.shapes);
      if (key == "outputs") return read_arguments(node.outputs, output_shapes);
      if (key == "input_shapes") return read_text(node.shapes);
      if (key == "attrs") return in_.list([&] { return read_attribute(node); });
      // Present if the trace was linked with a profile. Source: trace_linker.py of
      // mlcommons/chakra; older versions write "dur".
      if (key == "dur" || key == "inclusive_dur") return read_duration(whole_ns);
      if (key == "exclusive_dur") return read_duration(own_ns);
      if (key == "cat") return read_category(node);
      return skip();
    });
    if (!read) return read.error().at("node " + std::to_string(node.id));
    if (!have_id) return in_.bad("a node has no id");
    node.exclusive = own_ns.has_value();
    node.duration_ns = own_ns ? own_ns : whole_ns;
    return {};
  }

  Result<void> read_count(std::uint64_t& out) {
    auto word = in_.value();
    if (!word) return word.error();
    const auto count = to_count(*word);
    if (!count) return in_.bad("a whole number of 0 or more is expected");
    out = *count;
    return {};
  }

  Result<void> read_string(std::string& out) {
    auto text = in_.string();
    if (!text) return text.error();
    out = *std::move(text);
    return {};
  }

  /// Microseconds, or null.
  Result<void> read_duration(std::optional<double>& out_ns) {
    auto word = in_.word();
    if (!word) return word.error();
    if (*word == "null") return {};
    const auto us = to_number(*word);
    if (!us) return in_.bad("a duration is not a number");
    out_ns = *us * 1000;
    return {};
  }

  /// The linker writes a kernel as a copy of the operator that launched it, with the kernel's name
  /// and the profile's category. It gives operators no category; other tools give them these two.
  Result<void> read_category(TraceNode& node) {
    if (in_.peek() != '"') return skip();
    std::string category;
    if (auto read = read_string(category); !read) return read;
    node.kernel = category != "cpu_op" && category != "user_annotation";
    return {};
  }

  Result<void> read_text(std::string_view& out) {
    auto text = in_.value();
    if (!text) return text.error();
    out = *text;
    return {};
  }

  Result<void> read_values(std::vector<TensorRef>& out) {
    auto values = in_.value();
    if (!values) return values.error();
    return trace_.read_tensors(*values, out);
  }

  Result<void> read_arguments(std::vector<TensorRef>& out, std::string_view& shapes) {
    if (in_.peek() != '{') return read_values(out);
    return in_.object([&](std::string_view key) -> Result<void> {
      if (key == "values") return read_values(out);
      if (key == "shapes") return read_text(shapes);
      return skip();
    });
  }

  Result<void> read_attribute(TraceNode& node) {
    std::string name;
    std::string_view value;
    auto read = in_.object([&](std::string_view key) -> Result<void> {
      if (key == "name") return read_string(name);
      if (key != "value") return skip();
      auto text = in_.value();
      if (!text) return text.error();
      value = *text;
      return {};
    });
    if (!read) return read.error();
    if (name != "op_schema") return {};
    auto schema = LiteralCursor(value).string();
    if (!schema) return schema.error();
    node.schema = *std::move(schema);
    return {};
  }

  LiteralCursor in_;
  TensorTrace trace_;
};

}  // namespace

Result<Imported> import_pytorch(std::string_view bytes, const Options& options) {
  auto trace = JsonTrace(bytes).read();
  if (!trace) return trace.error();
  return import_tensor_trace(*std::move(trace), options);
}

}  // namespace ho::importers
