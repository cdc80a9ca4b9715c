#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "proto/convert.hpp"
#include "proto/file.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/words.hpp"
#include "tools/importers/import.hpp"
#include "tools/importers/unpack.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  std::string format;
  std::string input;
  std::string out;
  importers::Options options;
  std::vector<std::string> dimensions;
  bool json = false;
};

/// What a graph holds, by one property.
struct Sum {
  std::uint64_t count = 0;
  std::uint64_t total = 0;  ///< bytes of storages, ns of ops
};

using Sums = std::map<std::string, Sum>;

Sums by_kind(const Graph& graph) {
  Sums sums;
  for (const Storage& storage : graph.storages) {
    Sum& sum = sums[std::string(storage_kind_name(storage.kind))];
    ++sum.count;
    sum.total += storage.bytes;
  }
  return sums;
}

Sums by_phase(const Graph& graph) {
  Sums sums;
  for (const Op& op : graph.ops) {
    Sum& sum = sums[op.phase];
    ++sum.count;
    sum.total += op.duration_ns;
  }
  return sums;
}

void write_json(const importers::Imported& made) {
  JsonWriter json;
  json.begin_object()
      .field("graph", made.graph.name)
      .field("ops", made.graph.ops.size())
      .field("storages", made.graph.storages.size())
      .field("peak_unmanaged_bytes", analyzer::peak_unmanaged_bytes(made.graph))
      .field("measured_ops", made.notes.measured_ops)
      .field("derived_ops", made.notes.derived_ops)
      .field("derived_by_flops_ops", made.notes.flops_bound_ops)
      .field("device_flops_per_s", made.notes.rates.flops_per_s)
      .field("device_bytes_per_s", made.notes.rates.bytes_per_s);
  if (const auto network = made.notes.rates.network_bytes_per_s) {
    json.field("network_bytes_per_s", *network);
    json.field("derived_by_network_ops", made.notes.network_ops);
  }
  json.key("kinds").begin_array();
  for (const auto& [kind, sum] : by_kind(made.graph)) {
    json.begin_object().field("kind", kind).field("storages", sum.count).field("bytes", sum.total);
    json.end();
  }
  json.end().key("phases").begin_array();
  for (const auto& [phase, sum] : by_phase(made.graph)) {
    json.begin_object().field("phase", phase).field("ops", sum.count);
    json.field("duration_ns", sum.total).end();
  }
  json.end().key("remarks").begin_array();
  for (const std::string& remark : made.notes.remarks) json.value(remark);
  json.end().end();
  std::cout << std::move(json).text() << std::endl;
}

/// "100 T" for 1e14.
std::string with_prefix(double rate) {
  static constexpr std::array<const char*, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t step = 0;
  while (rate >= 1000 && step + 1 < kPrefixes.size()) {
    rate /= 1000;
    ++step;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g %s", rate, kPrefixes[step]);
  return text.data();
}

void tell(const Arguments& args, const importers::Imported& made) {
  const importers::Notes& notes = made.notes;
  std::cerr << printable(made.graph.name) << ": " << made.graph.ops.size() << " ops, "
            << made.graph.storages.size() << " storages, peak "
            << format_bytes(analyzer::peak_unmanaged_bytes(made.graph)) << '\n';
  for (const auto& [kind, sum] : by_kind(made.graph)) {
    std::cerr << "  " << kind << ": " << sum.count << ", " << format_bytes(sum.total) << '\n';
  }
  for (const auto& [phase, sum] : by_phase(made.graph)) {
    std::cerr << "  " << printable(phase) << ": " << sum.count << " ops, "
              << format_duration_ns(sum.total) << '\n';
  }
  if (notes.derived_ops > 0) {
    std::cerr << "  " << notes.derived_ops << " of " << made.graph.ops.size()
              << " durations are not measured but derived, as the longer of FLOPs at "
              << with_prefix(notes.rates.flops_per_s) << "FLOP/s and bytes at "
              << with_prefix(notes.rates.bytes_per_s) << "B/s (" << notes.flops_bound_ops
              << " by FLOPs)\n";
  }
  if (notes.network_ops > 0) {
    std::cerr << "  " << notes.network_ops << " of those are communication, its bytes at "
              << with_prefix(*notes.rates.network_bytes_per_s) << "B/s\n";
  }
  for (const std::string& remark : notes.remarks) std::cerr << "  " << printable(remark) << '\n';
  std::cerr << "  written " << args.out << '\n';
}

/// Splits "batch=8".
Result<void> read_dimensions(const std::vector<std::string>& texts, importers::Options& options) {
  for (const std::string& text : texts) {
    const auto equals = text.find('=');
    std::uint64_t size = 0;
    int used = 0;
    if (equals == std::string::npos || equals == 0 ||
        std::sscanf(text.c_str() + equals + 1, "%9" SCNu64 "%n", &size, &used) != 1 ||
        static_cast<std::size_t>(used) != text.size() - equals - 1 || size == 0) {
      return Error(Errc::kInvalidArgument, "--dim " + text + ": NAME=SIZE is expected");
    }
    options.dimensions[text.substr(0, equals)] = size;
  }
  return {};
}

Result<importers::Imported> import_file(const Arguments& args) {
  auto packed = read_whole_file(args.input, importers::kInputBytesMax);
  if (!packed) return packed.error();
  auto bytes = importers::unpack(*std::move(packed));
  if (!bytes) return bytes.error().at(args.input);
  auto made = args.format == "chakra" ? importers::import_chakra(*bytes, args.options)
              : args.format == "onnx" ? importers::import_onnx(*bytes, args.options)
                                      : importers::import_pytorch(*bytes, args.options);
  if (!made) return made.error().at(args.input);
  return made;
}

int run(Arguments& args) {
  const importers::Rates& rates = args.options.rates;
  for (const double rate :
       {rates.flops_per_s, rates.bytes_per_s, rates.network_bytes_per_s.value_or(1)}) {
    if (!std::isfinite(rate) || rate < 1) {
      return complain("import",
                      Error(Errc::kInvalidArgument,
                            "--device-flops, --device-bandwidth and --network-bandwidth must be at "
                            "least 1"));
    }
  }
  if (auto read = read_dimensions(args.dimensions, args.options); !read) {
    return complain("import", read.error());
  }
  const auto made = import_file(args);
  if (!made) return complain("import", made.error());
  if (auto written = write_graph_file(made->graph, args.out); !written) {
    return complain("import", written.error());
  }
  if (args.json) {
    write_json(*made);
  } else {
    tell(args, *made);
  }
  return kExitDone;
}

}  // namespace

void add_import(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command =
      *app.add_subcommand("import", "Make a graph of a trace or model in another format");
  command.add_option("format", args->format, "chakra, onnx or pytorch (execution trace, JSON)")
      ->required()
      ->check(CLI::IsMember({"chakra", "onnx", "pytorch"}));
  command.add_option("file", args->input, "The trace or model; also as .gz or .tar.gz")->required();
  command.add_option("--out", args->out, "The graph to write: .json, .textproto or .pb")
      ->required();
  command
      .add_option("--device-flops", args->options.rates.flops_per_s,
                  "FLOP/s, for ops without a duration")
      ->capture_default_str();
  command
      .add_option("--device-bandwidth", args->options.rates.bytes_per_s,
                  "Bytes/s of device memory, for ops without a duration")
      ->capture_default_str();
  command.add_option("--network-bandwidth", args->options.rates.network_bytes_per_s,
                     "Bytes/s for collectives, sends and receives without a duration "
                     "(default: as device memory)");
  command.add_option("--dim", args->dimensions,
                     "NAME=SIZE of a dimension an ONNX model only names");
  command.add_flag("--json", args->json, "Print one JSON object on stdout");
  command.footer(
      "Examples:\n"
      "  hyperoffload import chakra llama.et.gz --out llama.json\n"
      "  hyperoffload import onnx gpt.onnx --out gpt.pb --device-flops 312e12 --device-bandwidth "
      "2e12\n"
      "Exit: 0 written, 2 bad input or usage.");
  command.callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace ho::cli
