#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "proto/file.hpp"
#include "tools/analyzer/packing/csv.hpp"
#include "tools/analyzer/packing/solve.hpp"
#include "tools/analyzer/packing/validate.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/words.hpp"

namespace ho::cli {

namespace {

constexpr double kSecondsMax = 86'400;

struct Arguments {
  std::string file;
  std::string out;
  std::string capacity;
  double seconds = 60;
  bool json = false;
};

struct Answer {
  packing::Solution solution;
  std::optional<std::int64_t> capacity_bytes;
  std::size_t buffers = 0;
  double seconds = 0;
  bool valid = false;

  [[nodiscard]] bool found() const {
    return !capacity_bytes || solution.height_bytes <= *capacity_bytes;
  }
};

std::string to_json(const Arguments& args, const Answer& answer) {
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

void tell(const Arguments& args, const Answer& answer) {
  if (args.json) std::cout << to_json(args, answer) << std::endl;
  if (args.json && answer.found()) return;
  const packing::Solution& solution = answer.solution;
  std::cerr << args.file << ": " << answer.buffers << " buffers, largest live set "
            << solution.load_bytes << ", ";
  if (answer.found()) {
    std::cerr << "packed within " << solution.height_bytes << '\n';
  } else if (*answer.capacity_bytes < solution.load_bytes) {
    std::cerr << "cannot fit into " << *answer.capacity_bytes << ": " << solution.load_bytes
              << " are alive at once\n";
  } else {
    std::cerr << "not found within " << *answer.capacity_bytes << " in " << answer.seconds
              << " s; the best is " << solution.height_bytes << '\n';
  }
}

/// Solves, and has the result checked by who did not make it.
Result<Answer> solve(const Arguments& args, const std::vector<packing::Buffer>& buffers,
                     std::optional<std::int64_t> capacity_bytes) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  const auto limit =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(args.seconds));
  std::vector<packing::Lifetime> lifetimes;
  lifetimes.reserve(buffers.size());
  for (const packing::Buffer& buffer : buffers) {
    lifetimes.push_back({buffer.lower, buffer.upper, buffer.size});
  }
  packing::Budget budget(UINT64_MAX, clock, start + limit);
  Answer answer;
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

int run(const Arguments& args) {
  std::optional<std::int64_t> capacity_bytes;
  if (!args.capacity.empty()) {
    const auto bytes = parse_bytes(args.capacity);
    if (!bytes || *bytes == 0 || *bytes > std::uint64_t{packing::kNumberMax}) {
      return complain("pack", Error(Errc::kInvalidArgument,
                                    "--capacity " + args.capacity + ": not a size above 0"));
    }
    capacity_bytes = static_cast<std::int64_t>(*bytes);
  }
  if (!(args.seconds > 0) || args.seconds > kSecondsMax) {
    return complain("pack", Error(Errc::kInvalidArgument, "--seconds: must be above 0, at most " +
                                                              std::to_string(kSecondsMax)));
  }
  const auto text = read_whole_file(args.file, packing::kCsvBytesMax);
  if (!text) return complain("pack", text.error());
  const auto buffers = packing::read_buffers(*text);
  if (!buffers) return complain("pack", buffers.error().at(args.file));
  const auto answer = solve(args, *buffers, capacity_bytes);
  if (!answer) {
    complain("pack", answer.error());
    return kExitIllegal;
  }
  if (answer->found() && !args.out.empty()) {
    const auto written =
        write_whole_file(args.out, packing::write_offsets(*buffers, answer->solution.offsets));
    if (!written) return complain("pack", written.error());
  }
  tell(args, *answer);
  return answer->found() ? kExitDone : kExitInfeasible;
}

}  // namespace

void add_pack(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command = *app.add_subcommand("pack", "Place buffers of known lifetimes in memory");
  command.add_option("file", args->file, "CSV: id,lower,upper,size; lifetimes are [lower, upper)")
      ->required();
  command.add_option("--capacity", args->capacity,
                     "Stop at the first packing within it (default: as low as possible)");
  command.add_option("--out", args->out, "Where the rows go, with a column offset");
  command.add_option("--seconds", args->seconds, "How long to search")->capture_default_str();
  command.add_flag("--json", args->json, "Print one JSON object on stdout");
  command.footer(
      "Example:\n  hyperoffload pack buffers.csv --capacity 1048576 --out placed.csv\n"
      "Exit: 0 found, 2 bad input, 3 not found in time (the best height and the largest live set\n"
      "on stderr; nothing is written).");
  command.callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace ho::cli
