#include "common/layout/reshard.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/values.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/place/layout_options.hpp"

namespace ho::cli {

namespace {

struct ReshardArguments {
  PlacementWords from{"--mesh-from", "--from", {}, {}};
  PlacementWords to{"--mesh-to", "--to", {}, {}};
  std::string shape;
  std::string tensors;
  std::string division = "ceil";
  layout::ReshardOptions options{0, 1, false};
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
  if (get.relay) json.field("relay", true);
  json.end();
}

/// The command shows gets with one stride for both buffers, and one with two different strides run
/// by run. It counts them so wherever it counts gets.
bool has_one_stride(const layout::Get& get) {
  return get.source_stride_bytes == get.destination_stride_bytes;
}

std::uint64_t count_shown(const layout::Reader& reader) {
  std::uint64_t gets = 0;
  for (const layout::Get& get : reader.gets) gets += has_one_stride(get) ? 1 : get.count;
  return gets;
}

std::uint64_t count_shown(const layout::Reshard& plan) {
  std::uint64_t gets = 0;
  for (const layout::Reader& reader : plan.readers) gets += count_shown(reader);
  return gets;
}

void write_shown(JsonWriter& json, layout::Get get) {
  if (has_one_stride(get)) {
    write_get(json, get);
    return;
  }
  const std::uint64_t runs = std::exchange(get.count, 1);
  const std::uint64_t source_stride = std::exchange(get.source_stride_bytes, 0);
  const std::uint64_t destination_stride = std::exchange(get.destination_stride_bytes, 0);
  for (std::uint64_t run = 0; run < runs; ++run) {
    write_get(json, get);
    get.source_offset_bytes += source_stride;
    get.destination_offset_bytes += destination_stride;
  }
}

double seconds_of(std::uint64_t bytes, double link) { return static_cast<double>(bytes) / link; }

/// @return kInvalidArgument: too many gets to list them.
Result<std::string> to_json(const layout::Reshard& plan, double link) {
  const std::uint64_t gets = count_shown(plan);
  if (gets > layout::kGetsMax) {
    return Error(Errc::kInvalidArgument,
                 "the plan has " + std::to_string(gets) + " gets, and -o json lists at most " +
                     std::to_string(layout::kGetsMax) +
                     ": leave it out for the sums, or divide outer dimensions");
  }
  JsonWriter json;
  json.begin_object()
      .field("bytes_moved", plan.bytes_moved)
      .field("bytes_minimal", plan.bytes_minimal)
      .field("gets", gets)
      .field("busiest_link_bytes", plan.busiest_link_bytes)
      .field("busiest_link_floor_bytes", plan.busiest_link_floor_bytes);
  if (link > 0) json.field("seconds", seconds_of(plan.busiest_link_bytes, link));
  json.key("ranks").begin_array();
  for (const layout::Reader& reader : plan.readers) {
    json.begin_object().field("rank", reader.rank).key("gets").begin_array();
    for (const layout::Get& get : reader.gets) write_shown(json, get);
    json.end().end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string with_time(std::uint64_t bytes, double link) {
  std::string text = format_bytes(bytes);
  if (link > 0) {
    const double ns = seconds_of(bytes, link) * 1e9;
    const bool fits = ns < 9.2e18;  // a duration
    text += ", " +
            (fits ? format_duration_ns(static_cast<std::uint64_t>(ns)) : "more than 290 years") +
            " at " + format_rate(link, "B/s");
  }
  return text;
}

std::string to_table(const layout::Reshard& plan, const ReshardArguments& args, Format format) {
  Facts facts("from " + args.from.layout + " to " + args.to.layout);
  facts.add("moved", format_bytes(plan.bytes_moved) + " between ranks, at least " +
                         format_bytes(plan.bytes_minimal) + " are needed");
  facts.add("busiest link", with_time(plan.busiest_link_bytes, args.link));
  Table table({{"rank", Table::kRight},
               {"gets", Table::kRight},
               {"own bytes", Table::kRight},
               {"received", Table::kRight},
               {"from ranks"}});
  for (const layout::Reader& reader : plan.readers) {
    std::uint64_t own = 0;
    std::uint64_t received = 0;
    std::set<std::uint32_t> senders;
    for (const layout::Get& get : reader.gets) {
      (get.from == reader.rank ? own : received) += get.bytes();
      if (get.from != reader.rank) senders.insert(get.from);
    }
    std::string from;
    for (const std::uint32_t sender : senders) {
      from += (from.empty() ? "" : ",") + std::to_string(sender);
    }
    table.add({std::to_string(reader.rank), std::to_string(count_shown(reader)), format_bytes(own),
               format_bytes(received), from});
  }
  return facts.text(format) + table.text(format);
}

/// What the plan of one of many tensors comes to.
struct Moved {
  std::string name;
  std::uint64_t bytes_moved = 0;
  std::uint64_t bytes_minimal = 0;
  std::uint64_t gets = 0;
};

/// The bytes on a rank's link, of all tensors. Each way is a link of its own.
struct LinkBytes {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};

using LinksByRank = std::map<std::uint32_t, LinkBytes>;

/// What one plan comes to.
struct Summary {
  Moved moved;
  LinksByRank links;
};

Summary summary_of(const layout::Reshard& plan) {
  Summary out{{{}, plan.bytes_moved, plan.bytes_minimal, count_shown(plan)}, {}};
  for (const layout::Reader& reader : plan.readers) {
    LinkBytes& to = out.links[reader.rank];
    for (const layout::Get& get : reader.gets) {
      if (get.from == reader.rank) continue;
      to.received += get.bytes();
      out.links[get.from].sent += get.bytes();
    }
  }
  return out;
}

struct AllMoved {
  std::vector<Moved> tensors;
  LinksByRank links;
  Moved total;

  /// @return kInvalidArgument: 2^63 bytes or gets and more.
  Result<void> add(const std::string& name, const Summary& tensor);
  [[nodiscard]] std::uint64_t busiest_link_bytes() const;
};

Result<void> AllMoved::add(const std::string& name, const Summary& tensor) {
  tensors.push_back(tensor.moved);
  tensors.back().name = name;
  total.bytes_moved += tensor.moved.bytes_moved;
  total.bytes_minimal += tensor.moved.bytes_minimal;
  total.gets += tensor.moved.gets;
  // Each term is below it, so that none of these sums has wrapped round.
  constexpr std::uint64_t kEnd = std::uint64_t{1} << 63U;
  if (std::max({total.bytes_moved, total.bytes_minimal, total.gets}) >= kEnd) {
    return Error(Errc::kInvalidArgument, "all tensors together move 2^63 bytes and more");
  }
  for (const auto& [rank, bytes] : tensor.links) {
    LinkBytes& sum = links[rank];
    sum.sent += bytes.sent;
    sum.received += bytes.received;
  }
  return {};
}

std::uint64_t AllMoved::busiest_link_bytes() const {
  std::uint64_t most = 0;
  for (const auto& [rank, bytes] : links) most = std::max({most, bytes.sent, bytes.received});
  return most;
}

JsonWriter& add_fields(JsonWriter& json, const Moved& moved) {
  return json.field("bytes_moved", moved.bytes_moved)
      .field("bytes_minimal", moved.bytes_minimal)
      .field("gets", moved.gets);
}

std::string to_json(const AllMoved& all, double link) {
  JsonWriter json;
  add_fields(json.begin_object(), all.total).field("busiest_link_bytes", all.busiest_link_bytes());
  if (link > 0) json.field("seconds", seconds_of(all.busiest_link_bytes(), link));
  json.key("tensors").begin_array();
  for (const Moved& each : all.tensors) {
    add_fields(json.begin_object().field("tensor", each.name), each).end();
  }
  json.end().key("links").begin_array();
  for (const auto& [rank, bytes] : all.links) {
    json.begin_object()
        .field("rank", rank)
        .field("sent_bytes", bytes.sent)
        .field("received_bytes", bytes.received)
        .end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string to_table(const AllMoved& all, const ReshardArguments& args, Format format) {
  Facts facts(std::to_string(all.tensors.size()) + " tensors");
  facts.add("moved", format_bytes(all.total.bytes_moved) + " between ranks, at least " +
                         format_bytes(all.total.bytes_minimal) + " are needed");
  facts.add("gets", std::to_string(all.total.gets));
  facts.add("busiest link", with_time(all.busiest_link_bytes(), args.link));
  Table links({{"rank", Table::kRight}, {"sent", Table::kRight}, {"received", Table::kRight}});
  for (const auto& [rank, bytes] : all.links) {
    links.add({std::to_string(rank), format_bytes(bytes.sent), format_bytes(bytes.received)});
  }
  return facts.text(format) + links.text(format);
}

/// The words of one tensor's placements: the command line's, unless the file has its own.
PlacementWords with_layout(PlacementWords words, const std::string& own) {
  if (!own.empty()) words.layout = own;
  return words;
}

Result<AllMoved> reshard_all(std::span<const TensorMove> tensors, const PlacementWords& from_words,
                             const PlacementWords& to_words, const ReshardArguments& args) {
  const auto division = division_of(args.division);
  AllMoved all;
  // The tensors of a model have few different shapes.
  std::map<std::tuple<layout::Shape, std::uint64_t, std::string_view, std::string_view>, Summary>
      known;
  for (const TensorMove& tensor : tensors) {
    const auto entry =
        known.try_emplace({tensor.shape, tensor.element_bytes, tensor.from, tensor.to});
    Summary& summary = entry.first->second;
    const auto done = [&]() -> Result<void> {
      if (!entry.second) return all.add(tensor.name, summary);
      const auto from = read_placement(with_layout(from_words, tensor.from), division);
      if (!from) return from.error();
      const auto to = read_placement(with_layout(to_words, tensor.to), division);
      if (!to) return to.error();
      if (const auto ok = layout::check_shape(tensor.shape); !ok) return ok.error().at("shape");
      const auto plan =
          layout::reshard(*from, *to, tensor.shape,
                          {tensor.element_bytes, args.options.ranks_per_node, args.options.relays});
      if (!plan) return plan.error();
      summary = summary_of(*plan);
      return all.add(tensor.name, summary);
    }();
    if (!done) return done.error().at(args.tensors + ": tensor \"" + tensor.name + "\"");
  }
  return all;
}

/// Relays of each tensor relieve its busiest link; those of all may still meet in one.
Result<AllMoved> reshard_best(std::span<const TensorMove> tensors, const PlacementWords& to_words,
                              const ReshardArguments& args) {
  auto all = reshard_all(tensors, args.from, to_words, args);
  if (!args.options.relays) return all;
  ReshardArguments without = args;
  without.options.relays = false;
  auto direct = reshard_all(tensors, args.from, to_words, without);
  if (!direct) return all;
  const bool better = all && all->busiest_link_bytes() < direct->busiest_link_bytes();
  return better ? all : direct;
}

int run_reshard(Console& console, const ReshardArguments& args) {
  PlacementWords to_words = args.to;
  if (to_words.mesh.empty()) to_words.mesh = args.from.mesh;
  if (!args.tensors.empty()) {
    const auto tensors = read_tensors_file(args.tensors);
    if (!tensors) return console.refuse(tensors.error());
    const auto all = reshard_best(*tensors, to_words, args);
    if (!all) return console.refuse(all.error());
    console.print(console.json() ? to_json(*all, args.link)
                                 : to_table(*all, args, console.format()));
    return kExitDone;
  }
  if (args.shape.empty()) {
    return console.refuse(Error(Errc::kInvalidArgument, "--shape is required, or --tensors"));
  }
  const auto from = read_placement(args.from, division_of(args.division));
  if (!from) return console.refuse(from.error());
  const auto to = read_placement(to_words, division_of(args.division));
  if (!to) return console.refuse(to.error());
  const auto shape = layout::parse_shape(args.shape);
  if (!shape) return console.refuse(shape.error());
  const auto plan = layout::reshard(*from, *to, *shape, args.options);
  if (!plan) return console.refuse(plan.error());
  const auto text =
      console.json() ? to_json(*plan, args.link) : to_table(*plan, args, console.format());
  if (!text) return console.refuse(text.error());
  console.print(*text);
  return kExitDone;
}

}  // namespace

void add_reshard(Program& program) {
  auto [command, args] = add_command<ReshardArguments>(
      program, program.root(), "reshard", "Plan how tensors come from one layout to another",
      run_reshard);
  add_placement(command, args.from);
  add_placement(command, args.to)
      ->required(false)
      ->description("as --mesh-from (default: the same)");
  CLI::Option* const shape =
      command.add_option("--shape", args.shape, "one tensor's sizes, as \"15,5\"")
          ->type_name("SIZES");
  CLI::Option* const element = add_size(command, "--element-bytes", args.options.element_bytes,
                                        "size of an element of --shape", {1, kElementBytesMax});
  command
      .add_option("--tensors", args.tensors,
                  "instead: a list of tensors with names, shapes, element sizes and, where they "
                  "differ from --from and --to, layouts; .json, .textproto or .pb")
      ->type_name("FILE")
      ->excludes(shape)
      ->excludes(element);
  shape->needs(element);
  add_division(command, args.division);
  add_count(command, "--ranks-per-node", args.options.ranks_per_node,
            "so many successive ranks share a node, whose holders are read first", {1, 65536});
  command.add_flag("--relays", args.options.relays,
                   "ranks that need the same values read a part each from their holders and the "
                   "rest from one another, where the busiest link then carries less");
  add_rate(command, "--link", args.link, "speed of each rank's link, each way: shows the time",
           {1, 1e15});
  set_manual(
      command,
      {"Ranks of both meshes with the same number are the same process. Each rank reads what it "
       "needs and does not hold, with one-sided gets: count runs of run_bytes, whose starts are "
       "stride_bytes apart in both buffers. A get from the rank itself is a copy. Gets with "
       "\"combine\" add terms of a partial value, in their order. With --tensors the result "
       "has the sums, and the bytes of each rank's link. Gets with \"relay\" (--relays) read the "
       "other rank's buffer under the new layout, once that has its gets without. This command "
       "only plans: hyperoffload objects reshard does it with an object that a running program has "
       "published, and objects save writes one into files.",
       {"hyperoffload reshard --mesh-from 4x2:dp,tp --from 'tp;-' \\\n"
        "    --mesh-to 2x4:dp,tp --to '-;tp' --shape 4096,4096 --element-bytes 2",
        "hyperoffload reshard --mesh-from 8:x --from 'x;-' --to '-;x' \\\n"
        "    --shape 64,64 --element-bytes 4 -o json",
        "hyperoffload reshard --mesh-from 4x2:dp,tp --from 'tp;-' \\\n"
        "    --mesh-to 2x4:dp,tp --to 'tp;-' --tensors model.json --link 25GB/s"},
       {{kExitDone, "planned"}}});
}

}  // namespace ho::cli
