// objects save: reads a published version under a layout of one's own, into a file a rank.
#include <fnmatch.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <hyperoffload/objects.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/values.hpp"
#include "common/layout/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/hyperoffload/objects/new_folder.hpp"
#include "tools/hyperoffload/objects/safetensors.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

constexpr std::uint64_t kSecretFileBytesMax = 4 * kKiB;

struct SaveArguments : PoolOptions {
  std::string name;
  std::string out;
  std::optional<std::uint64_t> version;
  std::string mesh = "1:all";
  std::vector<std::string> layouts;
  std::string tensors;
  std::vector<std::string> only;
  std::string secret_file;
};

/// A tensor of the object, as the library describes it.
struct SavedTensor {
  std::string name;
  layout::Shape shape;
  std::uint64_t element_bytes = 0;
  std::string dtype;      ///< its program's
  std::string_view type;  ///< in files
  std::string layout;     ///< over the ranks that read; empty: all of it in each
};

/// A rank that reads: its file, and the library's reader that fetches into it.
struct Rank {
  std::uint32_t number = 0;
  std::uint64_t bytes = 0;
  std::uint64_t fetched_bytes = 0;
  std::unique_ptr<SafetensorsFile> file;
  std::unique_ptr<hyperoffload::Subscriber> reader;  ///< ends before its memory
};

struct Saved {
  std::uint64_t version = 0;
  std::vector<Rank> ranks;
  Duration took{};  ///< all reads, without the files
};

std::string file_name(std::uint32_t rank) {
  return "rank-" + std::to_string(rank) + ".safetensors";
}

Error error_of(const hyperoffload::Error& error) {
  return Error(static_cast<Errc>(error.status()), ho_last_error());
}

/// What the library says of the open version.
Result<std::vector<SavedTensor>> tensors_of(const hyperoffload::Subscriber& reader) {
  google::protobuf::Struct text;
  if (!google::protobuf::util::JsonStringToMessage(reader.text(), &text).ok()) {
    return Error(Errc::kCorrupt, "the object's description cannot be read");
  }
  std::vector<SavedTensor> out;
  for (const auto& value : text.fields().at("tensors").list_value().values()) {
    const auto& fields = value.struct_value().fields();
    SavedTensor& one = out.emplace_back();
    one.name = fields.at("name").string_value();
    one.element_bytes = static_cast<std::uint64_t>(fields.at("element_bytes").number_value());
    for (const auto& size : fields.at("shape").list_value().values()) {
      one.shape.push_back(static_cast<std::uint64_t>(size.number_value()));
    }
    one.dtype = fields.at("dtype").string_value();
  }
  return out;
}

/// Leaves out the tensors that no pattern fits. @param patterns  if empty, all stay.
Result<void> keep_only(const std::vector<std::string>& patterns,
                       std::vector<SavedTensor>& tensors) {
  if (patterns.empty()) return {};
  std::set<std::string> kept;
  for (const std::string& pattern : patterns) {
    bool used = false;
    for (const SavedTensor& one : tensors) {
      // Names may have brackets, as patterns.
      if (pattern != one.name && ::fnmatch(pattern.c_str(), one.name.c_str(), 0) != 0) continue;
      kept.insert(one.name);
      used = true;
    }
    if (!used) {
      return Error(Errc::kInvalidArgument, "--only " + pattern + ": the object has no such tensor");
    }
  }
  std::erase_if(tensors, [&](const SavedTensor& one) { return kept.count(one.name) == 0; });
  return {};
}

/// Says what the format calls each tensor's type.
Result<void> set_types(std::vector<SavedTensor>& tensors) {
  for (SavedTensor& one : tensors) {
    if (one.name == "__metadata__") {
      return Error(Errc::kUnsupported, "safetensors files have no tensor \"__metadata__\"");
    }
    const auto type = safetensors_type(one.dtype, one.element_bytes);
    if (!type) {
      return Error(Errc::kUnsupported, "tensor \"" + one.name + "\" is of type \"" + one.dtype +
                                           "\" with elements of " +
                                           format_bytes(one.element_bytes) +
                                           ", which safetensors files do not have; name the others "
                                           "with --only");
    }
    one.type = *type;
  }
  return {};
}

/// Sets each tensor's layout: the file's, else the one with as many dimensions, else none.
Result<void> set_layouts(const SaveArguments& args, const std::vector<TensorMove>& by_name,
                         std::vector<SavedTensor>& tensors) {
  const auto by_dimensions = layout::by_dimensions(args.layouts);
  if (!by_dimensions) return by_dimensions.error().at("--layout");
  for (const auto& [dimensions, layout] : *by_dimensions) {
    bool used = false;
    for (SavedTensor& one : tensors) {
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
                                    [&](const SavedTensor& one) { return one.name == named.name; });
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

/// The sizes of a tensor's part at each position of the mesh.
Result<std::vector<std::vector<std::uint64_t>>> parts_of(const layout::Mesh& mesh,
                                                         const SavedTensor& tensor) {
  if (tensor.layout.empty()) return std::vector(mesh.ranks.size(), tensor.shape);
  const auto read = layout::parse_layout(tensor.layout, mesh);
  if (!read) return read.error();
  const auto boxes = layout::regions(mesh, *read, tensor.shape);
  if (!boxes) return boxes.error();
  std::vector<std::vector<std::uint64_t>> out;
  for (const layout::Box& box : *boxes) {
    std::vector<std::uint64_t>& sizes = out.emplace_back();
    for (const layout::Interval& side : box.intervals()) sizes.push_back(side.size());
  }
  return out;
}

/// One read of a version. The library's errors are exceptions; errors of files and words are not.
class Save {
 public:
  Save(const SaveArguments& args, layout::Mesh mesh, std::vector<TensorMove> by_name,
       const std::string& secret, Console& console, ho_pool* pool)
      : args_(args),
        mesh_(std::move(mesh)),
        by_name_(std::move(by_name)),
        console_(console),
        pool_(pool) {
    options_.name = args.name.c_str();
    options_.secret = secret.c_str();
  }

  [[nodiscard]] Result<Saved> run(const NewFolder& folder) {
    const auto timeout = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(args_.timeout).count());
    // Open until the end: its publisher keeps the version meanwhile, if it keeps it whole.
    hyperoffload::Subscriber whole(pool_, options_, {});
    const std::uint64_t asked = args_.version.value_or(0);
    saved_.version = whole.acquire(asked, timeout, args_.version.value_or(UINT64_MAX));
    auto tensors = tensors_of(whole);
    if (!tensors) return tensors.error();
    tensors_ = std::move(*tensors);
    if (auto ok = set_layouts(args_, by_name_, tensors_); !ok) return ok.error();
    if (auto ok = keep_only(args_.only, tensors_); !ok) return ok.error();
    if (auto ok = set_types(tensors_); !ok) return ok.error();
    // As the format's own writer does, so that each tensor is aligned to its elements.
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const SavedTensor& a, const SavedTensor& b) {
                       return a.element_bytes > b.element_bytes;
                     });
    if (auto ok = make_files(folder); !ok) return ok.error();
    for (Rank& rank : saved_.ranks) {
      static_cast<void>(rank.reader->acquire(saved_.version, timeout, saved_.version));
    }
    for (Rank& rank : saved_.ranks) {
      console_.progress("reading rank " + std::to_string(rank.number) + " of " +
                        std::to_string(saved_.ranks.size()));
      const TimePoint begun = SteadyClock().now();
      rank.reader->read();
      saved_.took += SteadyClock().now() - begun;
      rank.fetched_bytes = fetched_bytes_of(*rank.reader);
      rank.reader.reset();
      if (auto ok = rank.file->write(); !ok) return ok.error();
      rank.file.reset();
    }
    return std::move(saved_);
  }

 private:
  static std::uint64_t fetched_bytes_of(const hyperoffload::Subscriber& reader) {
    google::protobuf::Struct text;
    if (!google::protobuf::util::JsonStringToMessage(reader.text(), &text).ok()) return 0;
    return static_cast<std::uint64_t>(text.fields().at("fetched_bytes").number_value());
  }

  /// A file and a reader for each rank.
  Result<void> make_files(const NewFolder& folder) {
    std::vector<std::vector<std::vector<std::uint64_t>>> parts;  // by tensor, position
    for (const SavedTensor& one : tensors_) {
      auto found = parts_of(mesh_, one);
      if (!found) return found.error().at("tensor \"" + one.name + "\"");
      parts.push_back(std::move(*found));
    }
    for (std::size_t position = 0; position < mesh_.ranks.size(); ++position) {
      std::vector<FileTensor> in_file;
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        std::uint64_t bytes = tensors_[i].element_bytes;
        for (const std::uint64_t size : parts[i][position]) bytes *= size;
        in_file.push_back({tensors_[i].name, tensors_[i].type, parts[i][position], bytes});
      }
      if (auto ok = add_rank(folder, mesh_.ranks[position], in_file); !ok) return ok;
    }
    return {};
  }

  Result<void> add_rank(const NewFolder& folder, std::uint32_t number,
                        const std::vector<FileTensor>& in_file) {
    std::map<std::string, std::string> notes{{"object", args_.name},
                                             {"version", std::to_string(saved_.version)},
                                             {"mesh", args_.mesh},
                                             {"rank", std::to_string(number)}};
    for (const SavedTensor& one : tensors_) {
      if (!one.layout.empty()) notes["layout:" + one.name] = one.layout;
    }
    auto file = SafetensorsFile::create(folder.file(file_name(number)), in_file, notes);
    if (!file) return file.error();
    Rank& rank = saved_.ranks.emplace_back();
    rank.number = number;
    rank.file = std::make_unique<SafetensorsFile>(std::move(*file));
    std::vector<ho_tensor> wanted;
    for (std::size_t i = 0; i < in_file.size(); ++i) {
      rank.bytes += in_file[i].bytes;
      ho_tensor& one = wanted.emplace_back();
      one.name = tensors_[i].name.c_str();
      one.layout = tensors_[i].layout.c_str();
      one.data = rank.file->data(i);
      one.bytes = in_file[i].bytes;
    }
    ho_object_options options = options_;
    options.mesh = args_.mesh.c_str();
    options.rank = number;
    rank.reader = std::make_unique<hyperoffload::Subscriber>(pool_, options, wanted);
    return {};
  }

  const SaveArguments& args_;
  const layout::Mesh mesh_;
  const std::vector<TensorMove> by_name_;
  Console& console_;
  ho_pool* const pool_;
  ho_object_options options_{};
  std::vector<SavedTensor> tensors_;
  Saved saved_;
};

void print(Console& console, const SaveArguments& args, const Saved& saved) {
  std::uint64_t bytes = 0;
  std::uint64_t fetched = 0;
  for (const Rank& rank : saved.ranks) {
    bytes += rank.bytes;
    fetched += rank.fetched_bytes;
  }
  const double seconds = std::chrono::duration<double>(saved.took).count();
  const auto file_of = [&](const Rank& rank) {
    return args.out + (args.out.back() == '/' ? "" : "/") + file_name(rank.number);
  };
  if (console.json()) {
    JsonWriter json;
    json.begin_object()
        .field("object", args.name)
        .field("version", saved.version)
        .field("mesh", args.mesh)
        .field("bytes", bytes)
        .field("fetched_bytes", fetched)
        .field("seconds", seconds)
        .key("ranks")
        .begin_array();
    for (const Rank& rank : saved.ranks) {
      json.begin_object()
          .field("rank", rank.number)
          .field("file", file_of(rank))
          .field("bytes", rank.bytes)
          .field("fetched_bytes", rank.fetched_bytes)
          .end();
    }
    json.end().end();
    console.print(std::move(json).text());
    return;
  }
  Facts facts("version " + std::to_string(saved.version) + " of " + args.name);
  facts.add("read", format_bytes(fetched) + " for " + format_bytes(bytes) + ", " +
                        format_rate(static_cast<double>(fetched) / seconds, "B/s"));
  Table table(
      {{"RANK", Table::kRight}, {"BYTES", Table::kRight}, {"FETCHED", Table::kRight}, {"FILE"}});
  for (const Rank& rank : saved.ranks) {
    table.add({std::to_string(rank.number), format_bytes(rank.bytes),
               format_bytes(rank.fetched_bytes), file_of(rank)});
  }
  console.print(facts.text(console.format()) + table.text(console.format()));
}

/// `objects ls` shows names behind their user.
Error with_hint(const SaveArguments& args, const Error& error) {
  const std::size_t slash = args.name.find('/');
  if (error.code() != Errc::kNotFound || slash == std::string::npos) return error;
  return Error(error.code(),
               error.context() + "; of a name as objects ls shows it, give what follows \"" +
                   args.name.substr(0, slash + 1) + "\": " + args.name.substr(slash + 1));
}

/// @param otherwise  how it ends where the answer is not "no".
int complain(Console& console, const SaveArguments& args, const Error& given, Exit otherwise) {
  const Error error = with_hint(args, given);
  const bool misspelt = error.code() == Errc::kInvalidArgument;
  const bool no = error.code() == Errc::kNotFound || error.code() == Errc::kCorrupt ||
                  error.code() == Errc::kUnsupported;
  if (no && console.json()) {
    JsonWriter json;
    json.begin_object().field("object", args.name).field("error", error.message()).end();
    console.print(std::move(json).text());
  }
  return console.complain(error, no ? kExitNo : misspelt ? kExitBadInput : otherwise);
}

int run_save(Console& console, const SaveArguments& args) {
  auto mesh = layout::parse_mesh(args.mesh);
  if (!mesh) return console.refuse(mesh.error().at("--mesh"));
  std::vector<TensorMove> by_name;
  if (!args.tensors.empty()) {
    auto read = read_tensors_file(args.tensors);
    if (!read) return console.refuse(read.error());
    by_name = std::move(*read);
  }
  std::string secret;
  if (!args.secret_file.empty()) {
    auto read = read_whole_file(args.secret_file, kSecretFileBytesMax);
    if (!read) return console.refuse(read.error());
    secret = std::move(*read);
    if (!secret.empty() && secret.back() == '\n') secret.pop_back();
  }
  auto folder = NewFolder::create(args.out);
  if (!folder) return console.refuse(folder.error());
  std::optional<hyperoffload::Pool> pool;
  try {
    pool.emplace(hyperoffload::Pool::Options{
        .pool = args.pool, .name = "hyperoffload objects save", .tls = args.tls});
  } catch (const hyperoffload::Error& error) {
    return complain_about_pool(console, error_of(error));
  }
  try {
    const auto saved =
        Save(args, std::move(*mesh), std::move(by_name), secret, console, pool->get()).run(*folder);
    if (!saved) return complain(console, args, saved.error(), kExitBadInput);
    if (const auto ok = folder->keep(); !ok) return console.refuse(ok.error());
    print(console, args, *saved);
    return kExitDone;
  } catch (const hyperoffload::Error& error) {
    return complain(console, args, error_of(error), kExitPoolFailed);
  }
}

}  // namespace

void add_objects_save(Program& program, CLI::App& objects, const PoolOptions& defaults) {
  auto [command, args] = add_command<SaveArguments>(
      program, objects, "save", "Read a published version into files, under any layout", run_save);
  command.add_option("NAME", args.name, "the object's name, as its program gave it")->required();
  command.add_option("--out", args.out, "a new or empty folder, for a file of each rank")
      ->type_name("FOLDER")
      ->required();
  add_count(command, "--version", args.version, "which one (default: the newest)", {0, UINT64_MAX});
  command
      .add_option("--mesh", args.mesh,
                  "ranks that read, as \"2x4:dp,tp\" (default: one, which has everything)")
      ->type_name("MESH");
  command
      .add_option("--layout", args.layouts,
                  "axes by dimension, as \"tp;-\", for tensors of so many dimensions; may be given "
                  "again for others (default: each rank has all of a tensor)")
      ->type_name("LAYOUT");
  command
      .add_option(
          "--tensors", args.tensors,
          "layouts of single tensors: the field \"to\" of a list as reshard takes it, whose "
          "shapes and element sizes are the object's")
      ->type_name("FILE");
  command
      .add_option("--only", args.only,
                  "a tensor to save, or a pattern as \"layers.0.*\"; may be given again for others "
                  "(default: all of them)")
      ->type_name("NAME");
  command
      .add_option("--secret-file", args.secret_file,
                  "a file with the secret that the object was published with")
      ->type_name("FILE");
  add_pool_options(command, args, defaults);
  set_manual(
      command,
      {"Files are in the format safetensors. Bytes are fetched with one-sided gets and compared "
       "with the publisher's checksums. The folder appears when all its files are written, and "
       "not before. Where the publisher makes versions faster than they are read, it must keep "
       "more of them. --timeout is how long to wait for a version.",
       {"hyperoffload objects save policy --out policy-of-today",
        "hyperoffload objects save policy --mesh 2x4:dp,tp --out policy-2x4 \\\n"
        "    --layout 'tp;-' --layout tp"},
       {{kExitDone, "saved"},
        {kExitNo, "there is no such version, it went meanwhile, or its bytes are damaged"},
        {kExitPoolFailed, "the pool cannot be reached, or a node is lost"}}});
}

}  // namespace ho::cli
