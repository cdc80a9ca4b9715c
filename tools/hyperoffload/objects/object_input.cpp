#include "tools/hyperoffload/objects/object_input.hpp"

#include <fnmatch.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <hyperoffload/objects.hpp>
#include <set>
#include <utility>

#include "common/base/units.hpp"
#include "common/cli/values.hpp"
#include "common/text/json.hpp"
#include "proto/files/file.hpp"

namespace ho::cli {

namespace {

constexpr std::uint64_t kSecretFileBytesMax = 4 * kKiB;

/// `objects ls` shows names behind their user.
Error with_hint(const ObjectArguments& args, const Error& error) {
  const std::size_t slash = args.name.find('/');
  if (error.code() != Errc::kNotFound || slash == std::string::npos) return error;
  return Error(error.code(),
               error.context() + "; of a name as objects ls shows it, give what follows \"" +
                   args.name.substr(0, slash + 1) + "\": " + args.name.substr(slash + 1));
}

}  // namespace

void add_object_options(CLI::App& command, ObjectArguments& args, const std::string& layout,
                        const std::string& tensors) {
  command.add_option("NAME", args.name, "the object's name, as its program gave it")->required();
  add_count(command, "--version", args.version, "which one (default: the newest)", {0, UINT64_MAX});
  command.add_option("--layout", args.layouts, layout)->type_name("LAYOUT");
  command.add_option("--tensors", args.tensors, tensors)->type_name("FILE");
  command
      .add_option("--only", args.only,
                  "a tensor to take, or a pattern as \"layers.0.*\"; may be given again for others "
                  "(default: all of them)")
      ->type_name("NAME");
  command
      .add_option("--secret-file", args.secret_file,
                  "a file with the secret that the object was published with")
      ->type_name("FILE");
}

Result<ObjectInput> read_object_input(const ObjectArguments& args) {
  ObjectInput out;
  auto mesh = layout::parse_mesh(args.mesh);
  if (!mesh) return mesh.error().at("--mesh");
  out.mesh = std::move(*mesh);
  if (!args.tensors.empty()) {
    auto read = read_tensors_file(args.tensors);
    if (!read) return read.error();
    out.by_name = std::move(*read);
  }
  if (args.secret_file.empty()) return out;
  auto secret = read_whole_file(args.secret_file, kSecretFileBytesMax);
  if (!secret) return secret.error();
  out.secret = std::move(*secret);
  if (!out.secret.empty() && out.secret.back() == '\n') out.secret.pop_back();
  return out;
}

std::uint32_t timeout_ms(const ObjectArguments& args) {
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(args.timeout).count());
}

std::uint64_t fetched_bytes_of(const hyperoffload::Subscriber& reader) {
  google::protobuf::Struct text;
  if (!google::protobuf::util::JsonStringToMessage(reader.text(), &text).ok()) return 0;
  return static_cast<std::uint64_t>(text.fields().at("fetched_bytes").number_value());
}

Result<std::vector<LaidTensor>> tensors_of(const hyperoffload::Subscriber& reader) {
  google::protobuf::Struct text;
  if (!google::protobuf::util::JsonStringToMessage(reader.text(), &text).ok()) {
    return Error(Errc::kCorrupt, "the object's description cannot be read");
  }
  std::vector<LaidTensor> out;
  for (const auto& value : text.fields().at("tensors").list_value().values()) {
    const auto& fields = value.struct_value().fields();
    LaidTensor& one = out.emplace_back();
    one.name = fields.at("name").string_value();
    one.element_bytes = static_cast<std::uint64_t>(fields.at("element_bytes").number_value());
    for (const auto& size : fields.at("shape").list_value().values()) {
      one.shape.push_back(static_cast<std::uint64_t>(size.number_value()));
    }
    one.dtype = fields.at("dtype").string_value();
    one.layout = fields.at("layout").string_value();
  }
  return out;
}

Result<void> keep_only(const std::vector<std::string>& patterns, std::vector<LaidTensor>& tensors) {
  if (patterns.empty()) return {};
  std::set<std::string> kept;
  for (const std::string& pattern : patterns) {
    bool used = false;
    for (const LaidTensor& one : tensors) {
      // Names may have brackets, as patterns.
      if (pattern != one.name && ::fnmatch(pattern.c_str(), one.name.c_str(), 0) != 0) continue;
      kept.insert(one.name);
      used = true;
    }
    if (!used) {
      return Error(Errc::kInvalidArgument, "--only " + pattern + ": the object has no such tensor");
    }
  }
  std::erase_if(tensors, [&](const LaidTensor& one) { return kept.count(one.name) == 0; });
  return {};
}

Result<void> set_layouts(const ObjectArguments& args, const std::vector<TensorMove>& by_name,
                         std::vector<LaidTensor>& tensors) {
  const auto by_dimensions = layout::by_dimensions(args.layouts);
  if (!by_dimensions) return by_dimensions.error().at("--layout");
  for (const auto& [dimensions, layout] : *by_dimensions) {
    bool used = false;
    for (LaidTensor& one : tensors) {
      if (one.shape.size() != dimensions) continue;
      one.layout = layout;
      used = true;
    }
    if (!used) {
      return Error(Errc::kInvalidArgument, "--layout " + layout + ": the object has no tensor of " +
                                               std::to_string(dimensions) + " dimensions");
    }
  }
  for (const TensorMove& named : by_name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const LaidTensor& one) { return one.name == named.name; });
    if (found == tensors.end()) {
      return Error(Errc::kInvalidArgument,
                   args.tensors + ": the object has no tensor \"" + named.name + "\"");
    }
    // A list of another model would otherwise divide this one's tensors.
    if (named.shape != found->shape || named.element_bytes != found->element_bytes) {
      return Error(Errc::kInvalidArgument, args.tensors + ": tensor \"" + named.name +
                                               "\" is of another shape or element size there");
    }
    if (!named.to.empty()) found->layout = named.to;
  }
  return {};
}

Result<std::vector<layout::Shape>> parts_of(const layout::Mesh& mesh, const LaidTensor& tensor) {
  if (tensor.layout.empty()) return std::vector(mesh.ranks.size(), tensor.shape);
  const auto read = layout::parse_layout(tensor.layout, mesh);
  if (!read) return read.error();
  const auto boxes = layout::regions(mesh, *read, tensor.shape);
  if (!boxes) return boxes.error();
  std::vector<layout::Shape> out;
  for (const layout::Box& box : *boxes) {
    std::vector<std::uint64_t>& sizes = out.emplace_back();
    for (const layout::Interval& side : box.intervals()) sizes.push_back(side.size());
  }
  return out;
}

Error error_of(const hyperoffload::Error& error) {
  return Error(static_cast<Errc>(error.status()), ho_last_error());
}

std::uint64_t bytes_of(const LaidTensor& tensor, const layout::Shape& part) {
  std::uint64_t bytes = tensor.element_bytes;
  for (const std::uint64_t size : part) bytes *= size;
  return bytes;
}

int complain_about_object(Console& console, const ObjectArguments& args, const Error& given,
                          Exit otherwise) {
  const Error error = with_hint(args, given);
  const bool misspelt =
      error.code() == Errc::kInvalidArgument || error.code() == Errc::kAlreadyExists;
  const bool no = error.code() == Errc::kNotFound || error.code() == Errc::kCorrupt ||
                  error.code() == Errc::kUnsupported;
  if (no && console.json()) {
    JsonWriter json;
    json.begin_object().field("object", args.name).field("error", error.message()).end();
    console.print(std::move(json).text());
  }
  return console.complain(error, no ? kExitNo : misspelt ? kExitBadInput : otherwise);
}

}  // namespace ho::cli
