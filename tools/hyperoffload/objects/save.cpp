// objects save: reads a published version under a layout of one's own, into a file a rank.
#include <algorithm>
#include <chrono>
#include <hyperoffload/objects.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/layout/layout.hpp"
#include "common/text/json.hpp"
#include "tools/hyperoffload/objects/new_folder.hpp"
#include "tools/hyperoffload/objects/object_input.hpp"
#include "tools/hyperoffload/objects/safetensors.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

struct SaveArguments : ObjectArguments {
  std::string out;
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

/// The format has each tensor's type.
Result<void> check_types(const std::vector<LaidTensor>& tensors) {
  for (const LaidTensor& one : tensors) {
    if (one.name == "__metadata__") {
      return Error(Errc::kUnsupported, "safetensors files have no tensor \"__metadata__\"");
    }
    if (safetensors_type(one.dtype, one.element_bytes)) continue;
    return Error(Errc::kUnsupported, "tensor \"" + one.name + "\" is of type \"" + one.dtype +
                                         "\" with elements of " + format_bytes(one.element_bytes) +
                                         ", which safetensors files do not have; name the others "
                                         "with --only");
  }
  return {};
}

/// One read of a version. The library's errors are exceptions; errors of files and words are not.
class Save {
 public:
  Save(const SaveArguments& args, const ObjectInput& input, Console& console, ho_pool* pool)
      : args_(args), input_(input), console_(console), pool_(pool) {
    options_.name = args.name.c_str();
    options_.secret = input.secret.c_str();
  }

  [[nodiscard]] Result<Saved> run(const NewFolder& folder) {
    const std::uint32_t timeout = timeout_ms(args_);
    // Open until the end: its publisher keeps the version meanwhile, if it keeps it whole.
    hyperoffload::Subscriber whole(pool_, options_, {});
    const std::uint64_t asked = args_.version.value_or(0);
    saved_.version = whole.acquire(asked, timeout, args_.version.value_or(UINT64_MAX));
    auto tensors = tensors_of(whole);
    if (!tensors) return tensors.error();
    tensors_ = std::move(*tensors);
    for (LaidTensor& one : tensors_) one.layout.clear();
    if (auto ok = set_layouts(args_, input_.by_name, tensors_); !ok) return ok.error();
    if (auto ok = keep_only(args_.only, tensors_); !ok) return ok.error();
    if (auto ok = check_types(tensors_); !ok) return ok.error();
    // As the format's own writer does, so that each tensor is aligned to its elements.
    std::stable_sort(
        tensors_.begin(), tensors_.end(),
        [](const LaidTensor& a, const LaidTensor& b) { return a.element_bytes > b.element_bytes; });
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
  /// A file and a reader for each rank.
  Result<void> make_files(const NewFolder& folder) {
    std::vector<std::vector<layout::Shape>> parts;  // by tensor, position
    for (const LaidTensor& one : tensors_) {
      auto found = parts_of(input_.mesh, one);
      if (!found) return found.error().at("tensor \"" + one.name + "\"");
      parts.push_back(std::move(*found));
    }
    for (std::size_t position = 0; position < input_.mesh.ranks.size(); ++position) {
      std::vector<FileTensor> in_file;
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const LaidTensor& tensor = tensors_[i];
        const layout::Shape& part = parts[i][position];
        in_file.push_back({tensor.name, *safetensors_type(tensor.dtype, tensor.element_bytes), part,
                           bytes_of(tensor, part)});
      }
      if (auto ok = add_rank(folder, input_.mesh.ranks[position], in_file); !ok) return ok;
    }
    return {};
  }

  Result<void> add_rank(const NewFolder& folder, std::uint32_t number,
                        const std::vector<FileTensor>& in_file) {
    std::map<std::string, std::string> notes{{"object", args_.name},
                                             {"version", std::to_string(saved_.version)},
                                             {"mesh", args_.mesh},
                                             {"rank", std::to_string(number)}};
    for (const LaidTensor& one : tensors_) {
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
  const ObjectInput& input_;
  Console& console_;
  ho_pool* const pool_;
  ho_object_options options_{};
  std::vector<LaidTensor> tensors_;
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

int run_save(Console& console, const SaveArguments& args) {
  const auto input = read_object_input(args);
  if (!input) return console.refuse(input.error());
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
    const auto saved = Save(args, *input, console, pool->get()).run(*folder);
    if (!saved) return complain_about_object(console, args, saved.error(), kExitBadInput);
    if (const auto ok = folder->keep(); !ok) return console.refuse(ok.error());
    print(console, args, *saved);
    return kExitDone;
  } catch (const hyperoffload::Error& error) {
    return complain_about_object(console, args, error_of(error), kExitPoolFailed);
  }
}

}  // namespace

void add_objects_save(Program& program, CLI::App& objects, const PoolOptions& defaults) {
  auto [command, args] = add_command<SaveArguments>(
      program, objects, "save", "Read a published version into files, under any layout", run_save);
  args.mesh = "1:all";
  command.add_option("--out", args.out, "a new or empty folder, for a file of each rank")
      ->type_name("FOLDER")
      ->required();
  command
      .add_option("--mesh", args.mesh,
                  "ranks that read, as \"2x4:dp,tp\" (default: one, which has everything)")
      ->type_name("MESH");
  add_object_options(
      command, args,
      "axes by dimension, as \"tp;-\", for tensors of so many dimensions; may be given "
      "again for others (default: each rank has all of a tensor)",
      "layouts of single tensors: the field \"to\" of a list as reshard takes it, whose "
      "shapes and element sizes are the object's");
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
