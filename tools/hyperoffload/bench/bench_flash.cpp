#include <string>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/flash/flash_bench.hpp"
#include "tools/hyperoffload/bench/figures.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

struct BenchFlashArguments {
  std::string path;
  std::string op = "read";
  std::string policy = "scratch";
  std::uint64_t size = kMiB;
  std::uint64_t area = kGiB;
  std::uint32_t inflight = 8;
  Duration seconds = std::chrono::seconds(21);
};

std::string to_json(const BenchFlashArguments& arguments, const bench::FlashBenchResult& result) {
  JsonWriter out;
  out.begin_object()
      .field("op", arguments.op)
      .field("policy", arguments.policy)
      .field("size", arguments.size)
      .field("inflight", arguments.inflight)
      .field("area", result.area_bytes)
      .field("bytes_per_s", result.ours.bytes_per_s)
      .field("ops_per_s", result.ours.bytes_per_s / static_cast<double>(arguments.size))
      .field("p50_us", result.p50_us)
      .field("p99_us", result.p99_us)
      .field("cpu_s_per_gb", result.ours.cpu_s_per_gb);
  out.key("limit")
      .begin_object()
      .field("name", result.fio.name)
      .field("bytes_per_s", result.fio.bytes_per_s)
      .field("cpu_s_per_gb", result.fio.cpu_s_per_gb)
      .field("ratio", result.ratio)
      .field("ratio_low", result.ratio_low)
      .field("ratio_high", result.ratio_high)
      .field("pairs", result.pairs)
      .end();
  out.field("notice", result.notice)
      .field("machine", bench::machine_class())
      .field("commit", bench::build_commit())
      .end();
  return std::move(out).text();
}

std::string to_text(const BenchFlashArguments& arguments, const bench::FlashBenchResult& result,
                    Format format) {
  Facts facts("flash " + arguments.op + " (" + arguments.policy + "), " +
              format_bytes(arguments.size) + " x " + std::to_string(arguments.inflight));
  facts.add(
      "ours",
      number(result.ours.bytes_per_s / 1e9, "%.3f GB/s, ") +
          number(result.ours.bytes_per_s / static_cast<double>(arguments.size), "%.0f ops/s, ") +
          number(result.p50_us, "p50 %.1f us, ") + number(result.p99_us, "p99 %.1f us, ") +
          number(result.ours.cpu_s_per_gb, "%.3f CPU s/GB"));
  facts.add(result.fio.name, number(result.fio.bytes_per_s / 1e9, "%.3f GB/s, ") +
                                 number(result.fio.cpu_s_per_gb, "%.3f CPU s/GB"));
  facts.add("ours over it", number(100 * result.ratio, "%.1f %% (95 %%: ") +
                                number(100 * result.ratio_low, "%.1f .. ") +
                                number(100 * result.ratio_high, "%.1f, ") +
                                std::to_string(result.pairs) + " pairs)");
  if (!result.notice.empty()) facts.add("notice", result.notice);
  return facts.text(format);
}

int run_bench_flash(Console& console, const BenchFlashArguments& arguments) {
  const auto refuse = [&](const char* why) {
    return console.refuse(Error(Errc::kInvalidArgument, why));
  };
  if (arguments.size % 512 != 0) return refuse("--size: a multiple of 512 bytes is needed");
  if (arguments.size > arguments.area) return refuse("--size: more than --area");
  // fio writes directly, so both must write units that the device takes as they are.
  if (arguments.op == "write" && arguments.size % flash::kBlockBytes != 0) {
    return refuse("--size: writes need a multiple of 4 KiB");
  }
  bench::FlashBenchOptions options;
  options.path = arguments.path;
  options.op = arguments.op == "read" ? bench::FlashOp::kRead : bench::FlashOp::kWrite;
  options.policy =
      arguments.policy == "durable" ? flash::Policy::kDurable : flash::Policy::kScratch;
  options.size_bytes = arguments.size;
  options.area_bytes = arguments.area / arguments.size * arguments.size;
  options.inflight = arguments.inflight;
  options.time = arguments.seconds;
  const auto result = bench::bench_flash(options);
  if (!result) {
    const Errc code = result.error().code();
    const bool bad_path = code == Errc::kInvalidArgument || code == Errc::kNotFound ||
                          code == Errc::kPermissionDenied;
    return console.complain(result.error(), bad_path ? kExitBadInput : kExitNo);
  }
  console.print(console.json() ? to_json(arguments, *result)
                               : to_text(arguments, *result, console.format()));
  return kExitDone;
}

}  // namespace

void add_bench_flash(Program& program, CLI::App& bench) {
  auto [command, arguments] = add_command<BenchFlashArguments>(
      program, bench, "flash", "The flash store beside fio, on the same blocks of one file",
      run_bench_flash);
  command
      .add_option("--path", arguments.path,
                  "a file or block device without extents; a missing file is made and removed")
      ->type_name("FILE")
      ->required();
  add_choice(command, "--op", arguments.op, "read or write", {"read", "write"});
  add_choice(command, "--policy", arguments.policy,
             "scratch, or durable (beside fio --fdatasync=1)", {"scratch", "durable"});
  add_size(command, "--size", arguments.size, "of one operation", {512, kGiB});
  add_size(command, "--area", arguments.area, "what both walk through at random",
           {512, 1024 * kGiB});
  add_count(command, "--inflight", arguments.inflight, "operations in flight at a time", {1, 1024});
  add_seconds(command, arguments.seconds, "time of all turns together");
  set_manual(command, {"",
                       {"hyperoffload bench flash --path /mnt/nvme/bench --op write --size 1MiB"},
                       {{kExitDone, "measured"}, {kExitNo, "it cannot be measured here"}}});
}

}  // namespace ho::cli
