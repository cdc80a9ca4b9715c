#include <chrono>
#include <optional>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/file.hpp"
#include "tools/analyzer/packing/csv.hpp"
#include "tools/analyzer/packing/solve.hpp"
#include "tools/analyzer/packing/validate.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

struct PackArguments {
  std::string file;
  std::string out;
  std::uint64_t capacity = 0;  ///< 0: as low as possible
  Duration seconds = std::chrono::seconds(60);
};

struct PackAnswer {
  packing::Solution solution;
  std::optional<std::int64_t> capacity_bytes;
  std::size_t buffers = 0;
  double seconds = 0;
  bool valid = false;

  [[nodiscard]] bool found() const {
    return !capacity_bytes || solution.height_bytes <= *capacity_bytes;
  }
};

std::string to_json(const PackArguments& args, const PackAnswer& answer) {
  JsonWriter json;
  json.begin_object().field("file", args.file).field("buffers", answer.buffers);
  if (answer.capacity_bytes) json.field("capacity_bytes", *answer.capacity_bytes);
  json.field("found", answer.found())
      .field("height_bytes", answer.solution.height_bytes)
      .field("live_bound_bytes", answer.solution.load_bytes)
      .field("seconds", answer.seconds)
      .field("valid", answer.valid)
      .end();
  return std::move(json).text();
}

std::string to_text(const PackArguments& args, const PackAnswer& answer, Format format) {
  const packing::Solution& solution = answer.solution;
  return Facts(args.file + ": " + std::to_string(answer.buffers) + " buffers")
      .add("largest live set", std::to_string(solution.load_bytes))
      .add("height", std::to_string(solution.height_bytes))
      .text(format);
}

int answer_not_found(Console& console, const PackAnswer& answer) {
  const packing::Solution& solution = answer.solution;
  const std::string capacity = std::to_string(*answer.capacity_bytes);
  std::string why;
  if (*answer.capacity_bytes < solution.load_bytes) {
    why = "cannot fit into " + capacity + ": the largest live set is " +
          std::to_string(solution.load_bytes);
  } else {
    why = "not found within " + capacity + " in " + std::to_string(answer.seconds) +
          " s; the best is " + std::to_string(solution.height_bytes);
  }
  return console.complain(Error(Errc::kExhausted, why), kExitInfeasible);
}

/// Solves, then has the independent validator check the result.
Result<PackAnswer> solve(const PackArguments& args, const std::vector<packing::Buffer>& buffers,
                         std::optional<std::int64_t> capacity_bytes) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  std::vector<packing::Lifetime> lifetimes;
  lifetimes.reserve(buffers.size());
  for (const packing::Buffer& buffer : buffers) {
    lifetimes.push_back({buffer.lower, buffer.upper, buffer.size});
  }
  packing::Budget budget(UINT64_MAX, clock, start + args.seconds);
  PackAnswer answer;
  answer.capacity_bytes = capacity_bytes;
  answer.buffers = buffers.size();
  answer.solution = packing::solve(lifetimes, 0, {capacity_bytes.value_or(0)}, budget);
  answer.seconds = std::chrono::duration<double>(clock.now() - start).count();
  const auto violation =
      packing::find_violation(buffers, answer.solution.offsets, answer.solution.height_bytes);
  if (violation) return Error(Errc::kConflict, "the packing is wrong: " + *violation);
  answer.valid = true;
  return answer;
}

int run_pack(Console& console, const PackArguments& args) {
  if (const auto apart = check_files({{args.file}, {args.out}}); !apart) {
    return console.refuse(apart.error());
  }
  std::optional<std::int64_t> capacity_bytes;
  if (args.capacity > 0) capacity_bytes = static_cast<std::int64_t>(args.capacity);
  const auto text = read_whole_file(args.file, packing::kCsvBytesMax);
  if (!text) return console.refuse(text.error());
  const auto buffers = packing::read_buffers(*text);
  if (!buffers) return console.refuse(buffers.error().at(args.file));
  const auto answer = solve(args, *buffers, capacity_bytes);
  if (!answer) return console.complain(answer.error(), kExitNo);
  if (answer->found() && !args.out.empty()) {
    const auto written =
        write_whole_file(args.out, packing::write_offsets(*buffers, answer->solution.offsets));
    if (!written) return console.refuse(written.error());
  }
  if (console.json()) {
    console.print(to_json(args, *answer));
  } else if (answer->found()) {
    console.print(to_text(args, *answer, console.format()));
  }
  return answer->found() ? kExitDone : answer_not_found(console, *answer);
}

}  // namespace

void add_pack(Program& program) {
  auto [command, args] = add_command<PackArguments>(
      program, program.root(), "pack", "Place buffers with known lifetimes in memory", run_pack);
  command
      .add_option("FILE", args.file,
                  "CSV with the columns id,lower,upper,size; lifetimes are [lower, upper)")
      ->required();
  add_size(command, "--capacity", args.capacity,
           "stop at the first packing within it (default: as low as possible)",
           {1, std::uint64_t{packing::kNumberMax}});
  command.add_option("--out", args.out, "where these columns go, with a column offset")
      ->type_name("FILE");
  add_seconds(command, args.seconds, "how long to search");
  set_manual(
      command,
      {"",
       {"hyperoffload pack buffers.csv --capacity 1MiB --out placed.csv"},
       {{kExitDone, "found"},
        {kExitNo, "the packer made a mistake; please report it"},
        {kExitInfeasible, "not found within the capacity in that time; nothing is written"}}});
}

}  // namespace ho::cli
