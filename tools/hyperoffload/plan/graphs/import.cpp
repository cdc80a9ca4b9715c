#include <charconv>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/graphs/doubts.hpp"
#include "tools/hyperoffload/plan/graphs/graph_facts.hpp"
#include "tools/importers/bytes/unpack.hpp"
#include "tools/importers/import.hpp"

namespace ho::cli {

namespace {

struct ImportArguments {
  std::string format;
  std::string input;
  std::string out;
  importers::Options options;
  std::vector<std::string> dimensions;
  double network_bytes_per_s = 0;  ///< 0: as device memory
};

std::string to_json(const importers::Imported& made) {
  JsonWriter json;
  json.begin_object();
  write_graph(json, made.graph);
  json.field("measured_ops", made.notes.measured_ops)
      .field("derived_ops", made.notes.derived_ops)
      .field("derived_by_flops_ops", made.notes.flops_bound_ops)
      .field("device_flops_per_s", made.notes.rates.flops_per_s)
      .field("device_bytes_per_s", made.notes.rates.bytes_per_s);
  if (const auto network = made.notes.rates.network_bytes_per_s) {
    json.field("network_bytes_per_s", *network);
    json.field("derived_by_network_ops", made.notes.network_ops);
  }
  json.key("remarks").begin_array();
  for (const std::string& remark : made.notes.remarks) json.value(remark);
  json.end().end();
  return std::move(json).text();
}

std::string to_text(const ImportArguments& args, const importers::Imported& made, Format format) {
  const importers::Notes& notes = made.notes;
  Facts facts = graph_facts(made.graph);
  if (notes.derived_ops > 0) {
    facts.add("derived", std::to_string(notes.derived_ops) + " of " +
                             std::to_string(made.graph.ops.size()) +
                             " durations are not measured but derived: the longer of FLOPs at " +
                             format_rate(notes.rates.flops_per_s, "FLOP/s") + " and bytes at " +
                             format_rate(notes.rates.bytes_per_s, "B/s") + " (" +
                             std::to_string(notes.flops_bound_ops) + " by FLOPs)");
  }
  if (notes.network_ops > 0) {
    facts.add("network", std::to_string(notes.network_ops) +
                             " of the derived are communication, its bytes at " +
                             format_rate(*notes.rates.network_bytes_per_s, "B/s"));
  }
  for (const std::string& remark : notes.remarks) facts.add("remark", remark);
  return facts.add("written", args.out).text(format);
}

/// Splits "batch=8".
Result<void> read_dimensions(const std::vector<std::string>& texts, importers::Options& options) {
  constexpr std::uint64_t kSizeMax = 999'999'999;
  for (const std::string& text : texts) {
    const auto equals = std::min(text.find('='), text.size());
    const char* const end = text.data() + text.size();
    const char* const begin = std::min(text.data() + equals + 1, end);
    std::uint64_t size = 0;
    const auto [stop, code] = std::from_chars(begin, end, size);
    if (equals == 0 || code != std::errc() || stop != end || size == 0 || size > kSizeMax) {
      return Error(Errc::kInvalidArgument, "--dim " + text + ": NAME=SIZE is expected, SIZE 1 to " +
                                               std::to_string(kSizeMax));
    }
    options.dimensions[text.substr(0, equals)] = size;
  }
  return {};
}

Result<importers::Imported> import_file(const ImportArguments& args) {
  auto packed = read_whole_file(args.input, importers::kInputBytesMax);
  if (!packed) return packed.error();
  auto bytes = importers::unpack(*std::move(packed));
  if (!bytes) return bytes.error().at(args.input);
  auto made = args.format == "chakra" ? importers::import_chakra(*bytes, args.options)
              : args.format == "onnx" ? importers::import_onnx(*bytes, args.options)
                                      : importers::import_pytorch(*bytes, args.options);
  if (!made) return made.error().at(args.input);
  for (std::string& doubt : doubts(made->graph)) made->notes.remarks.push_back(std::move(doubt));
  return made;
}

int run_import(Console& console, ImportArguments& args) {
  if (const auto apart = check_files({{args.input}, {args.out}}); !apart) {
    return console.refuse(apart.error());
  }
  if (!args.dimensions.empty() && args.format != "onnx") {
    return console.refuse(Error(Errc::kInvalidArgument, "--dim is for onnx"));
  }
  if (auto read = read_dimensions(args.dimensions, args.options); !read) {
    return console.refuse(read.error());
  }
  if (args.network_bytes_per_s > 0) {
    args.options.rates.network_bytes_per_s = args.network_bytes_per_s;
  }
  const auto made = import_file(args);
  if (!made) return console.refuse(made.error());
  if (auto written = write_graph_file(made->graph, args.out); !written) {
    return console.refuse(written.error());
  }
  console.print(console.json() ? to_json(*made) : to_text(args, *made, console.format()));
  return kExitDone;
}

}  // namespace

void add_import(Program& program) {
  auto [command, args] = add_command<ImportArguments>(
      program, program.root(), "import", "Make a graph from a trace or a model in another format",
      run_import);
  add_choice(command, "FORMAT", args.format, "chakra, onnx or pytorch (execution trace, JSON)",
             {"chakra", "onnx", "pytorch"})
      ->required();
  command.add_option("FILE", args.input, "the trace or model; also as .gz or .tar.gz")->required();
  command.add_option("--out", args.out, "the graph to write: .json, .textproto or .pb")
      ->type_name("FILE")
      ->required();
  const Bounds<double> any{1, std::numeric_limits<double>::max()};
  add_flops(command, "--device-flops", args.options.rates.flops_per_s,
            "what the device computes, for ops without a duration", any);
  add_rate(command, "--device-bandwidth", args.options.rates.bytes_per_s,
           "of device memory, for ops without a duration", any);
  add_rate(command, "--network-bandwidth", args.network_bytes_per_s,
           "for collectives, sends and receives without a duration (default: as device memory)",
           any);
  command.add_option("--dim", args.dimensions, "size of a dimension that an ONNX model only names")
      ->type_name("NAME=SIZE");
  set_manual(command, {"",
                       {"hyperoffload import chakra llama.et.gz --out llama.json",
                        "hyperoffload import onnx gpt.onnx --out gpt.pb \\",
                        "    --device-flops 312TFLOP/s --device-bandwidth 2TB/s"},
                       {{kExitDone, "written"}}});
}

}  // namespace ho::cli
