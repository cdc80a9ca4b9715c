#include "common/layout/reshard.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/values.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/layout_options.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  PlacementWords from{"--mesh-from", "--from", {}, {}};
  PlacementWords to{"--mesh-to", "--to", {}, {}};
  std::string shape;
  std::string division = "ceil";
  layout::ReshardOptions options{0, 1};
  double link = 0;
};

std::string_view name_of(layout::Reduction how) {
  switch (how) {
    case layout::Reduction::kSum: return "sum";
    case layout::Reduction::kMin: return "min";
    case layout::Reduction::kMax: return "max";
  }
  return "";
}

void write_get(JsonWriter& json, const layout::Get& get) {
  json.begin_object()
      .field("from", get.from)
      .field("source_offset_bytes", get.source_offset_bytes)
      .field("destination_offset_bytes", get.destination_offset_bytes)
      .field("run_bytes", get.run_bytes)
      .field("stride_bytes", get.source_stride_bytes)
      .field("count", get.count);
  if (get.combine) json.field("combine", name_of(*get.combine));
  json.end();
}

/// The gets as the command shows them: one stride for both buffers. A get with two different
/// strides is shown run by run.
std::vector<layout::Get> with_one_stride(const std::vector<layout::Get>& gets) {
  std::vector<layout::Get> out;
  for (layout::Get get : gets) {
    if (get.source_stride_bytes == get.destination_stride_bytes) {
      out.push_back(get);
      continue;
    }
    const std::uint64_t runs = get.count;
    const std::uint64_t source_stride = std::exchange(get.source_stride_bytes, 0);
    const std::uint64_t destination_stride = std::exchange(get.destination_stride_bytes, 0);
    get.count = 1;
    for (std::uint64_t run = 0; run < runs; ++run) {
      out.push_back(get);
      get.source_offset_bytes += source_stride;
      get.destination_offset_bytes += destination_stride;
    }
  }
  return out;
}

std::string to_json(const layout::Reshard& plan) {
  std::vector<std::vector<layout::Get>> shown;
  shown.reserve(plan.readers.size());
  std::size_t gets = 0;
  for (const layout::Reader& reader : plan.readers) {
    shown.push_back(with_one_stride(reader.gets));
    gets += shown.back().size();
  }
  JsonWriter json;
  json.begin_object()
      .field("bytes_moved", plan.bytes_moved)
      .field("bytes_minimal", plan.bytes_minimal)
      .field("gets", gets)
      .field("busiest_link_bytes", plan.busiest_link_bytes)
      .field("busiest_link_floor_bytes", plan.busiest_link_floor_bytes)
      .key("ranks")
      .begin_array();
  for (std::size_t i = 0; i < shown.size(); ++i) {
    json.begin_object().field("rank", plan.readers[i].rank).key("gets").begin_array();
    for (const layout::Get& get : shown[i]) write_get(json, get);
    json.end().end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string to_table(const layout::Reshard& plan, const Arguments& args, Format format) {
  Facts facts("from " + args.from.layout + " to " + args.to.layout);
  facts.add("moved", format_bytes(plan.bytes_moved) + " between ranks, at least " +
                         format_bytes(plan.bytes_minimal) + " are needed");
  std::string busiest = format_bytes(plan.busiest_link_bytes);
  if (args.link > 0) {
    const double seconds = static_cast<double>(plan.busiest_link_bytes) / args.link;
    busiest += ", " + format_duration_ns(static_cast<std::uint64_t>(seconds * 1e9)) + " at " +
               format_rate(args.link, "B/s");
  }
  facts.add("busiest link", busiest);
  Table table({{"rank", Table::Shown::kAlways, Table::Align::kRight},
               {"gets", Table::Shown::kAlways, Table::Align::kRight},
               {"own bytes", Table::Shown::kAlways, Table::Align::kRight},
               {"received", Table::Shown::kAlways, Table::Align::kRight},
               {"from ranks"}});
  for (const layout::Reader& reader : plan.readers) {
    std::uint64_t own = 0;
    std::uint64_t received = 0;
    std::string from;
    std::uint32_t last = reader.rank;
    for (const layout::Get& get : reader.gets) {
      (get.from == reader.rank ? own : received) += get.bytes();
      if (get.from != reader.rank && get.from != last) {
        from += (from.empty() ? "" : ",") + std::to_string(get.from);
      }
      last = get.from;
    }
    table.add({std::to_string(reader.rank), std::to_string(reader.gets.size()), format_bytes(own),
               format_bytes(received), from});
  }
  return facts.text(format) + table.text(format);
}

int run(Console& console, const Arguments& args) {
  const auto from = read_placement(args.from, division_of(args.division));
  if (!from) return console.refuse(from.error());
  PlacementWords to_words = args.to;
  if (to_words.mesh.empty()) to_words.mesh = args.from.mesh;
  const auto to = read_placement(to_words, division_of(args.division));
  if (!to) return console.refuse(to.error());
  const auto shape = layout::parse_shape(args.shape);
  if (!shape) return console.refuse(shape.error());
  const auto plan = layout::reshard(*from, *to, *shape, args.options);
  if (!plan) return console.refuse(plan.error());
  console.print(console.json() ? to_json(*plan) : to_table(*plan, args, console.format()));
  return kExitDone;
}

}  // namespace

void add_reshard(Program& program) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command =
      program.add(program.root(), "reshard", "Plan how a tensor comes from one layout to another",
                  [args](Console& console) { return run(console, *args); });
  add_placement(command, args->from);
  add_placement(command, args->to)
      ->required(false)
      ->description("as --mesh-from (default: the same)");
  command.add_option("--shape", args->shape, "the tensor's sizes, as \"15,5\"")
      ->type_name("SIZES")
      ->required();
  add_size(command, "--element-bytes", args->options.element_bytes, "size of an element", {1, 1024})
      ->required();
  add_division(command, args->division);
  command
      .add_option("--ranks-per-node", args->options.ranks_per_node,
                  "so many successive ranks share a node, whose holders are read first")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  add_rate(command, "--link", args->link, "speed of each rank's link, each way: shows the time",
           {1, 1e15});
  set_manual(
      command,
      {"Ranks of both meshes with the same number are the same process. Each rank reads what it "
       "needs and does not hold, with one-sided gets: count runs of run_bytes, whose starts are "
       "stride_bytes apart in both buffers. A get from the rank itself is a copy. Gets with "
       "\"combine\" add terms of a partial value, in their order.",
       {"hyperoffload reshard --mesh-from 4x2:dp,tp --from 'tp;-' \\\n"
        "    --mesh-to 2x4:dp,tp --to '-;tp' --shape 4096,4096 --element-bytes 2",
        "hyperoffload reshard --mesh-from 8:x --from 'x;-' --to '-;x' \\\n"
        "    --shape 64,64 --element-bytes 4 -o json"},
       {{kExitDone, "planned"}}});
}

}  // namespace ho::cli
