#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/flash_bench.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  std::string path;
  std::string op = "read";
  std::string policy = "scratch";
  std::string size = "1MiB";
  std::string area = "1GiB";
  std::uint32_t inflight = 8;
  double seconds = 21;
  bool json = false;
};

std::string number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, std::isfinite(value) ? value : 0.0);
  return text;
}

void print_json(const Arguments& arguments, std::uint64_t size,
                const bench::FlashBenchResult& result) {
  JsonWriter out;
  out.begin_object()
      .field("op", arguments.op)
      .field("policy", arguments.policy)
      .field("size", size)
      .field("inflight", arguments.inflight)
      .field("area", result.area_bytes)
      .field("bytes_per_s", result.ours.bytes_per_s)
      .field("ops_per_s", result.ours.bytes_per_s / static_cast<double>(size))
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
  std::cout << out.text() << "\n";
}

void print_words(const Arguments& arguments, std::uint64_t size,
                 const bench::FlashBenchResult& result) {
  std::cout << "flash " << arguments.op << " (" << arguments.policy << ") " << format_bytes(size)
            << " x " << arguments.inflight << ": " << number(result.ours.bytes_per_s / 1e9, "%.3f")
            << " GB/s, " << number(result.ours.bytes_per_s / static_cast<double>(size), "%.0f")
            << " ops/s, p50 " << number(result.p50_us, "%.1f") << " us, p99 "
            << number(result.p99_us, "%.1f") << " us, " << number(result.ours.cpu_s_per_gb, "%.3f")
            << " CPU s/GB\n  " << result.fio.name << ": "
            << number(result.fio.bytes_per_s / 1e9, "%.3f") << " GB/s, "
            << number(result.fio.cpu_s_per_gb, "%.3f") << " CPU s/GB; ours is "
            << number(100 * result.ratio, "%.1f")
            << " % of it (95 %: " << number(100 * result.ratio_low, "%.1f") << " .. "
            << number(100 * result.ratio_high, "%.1f") << ", " << result.pairs << " pairs)\n";
  if (!result.notice.empty()) std::cout << "  " << result.notice << "\n";
}

int run(const Arguments& arguments) {
  const auto size = parse_bytes(arguments.size);
  const auto area = parse_bytes(arguments.area);
  if (!size || *size < 512 || *size % 512 != 0 || *size > kGiB || !area || *area < *size) {
    std::cerr << "hyperoffload bench flash: --size: a multiple of 512 up to 1GiB and --area\n";
    return kExitBadInput;
  }
  // fio writes directly, and both shall write what a device takes as it is.
  if (arguments.op == "write" && *size % flash::kBlockBytes != 0) {
    std::cerr << "hyperoffload bench flash: --size: writes are a multiple of 4KiB\n";
    return kExitBadInput;
  }
  bench::FlashBenchOptions options;
  options.path = arguments.path;
  options.op = arguments.op == "read" ? bench::FlashOp::kRead : bench::FlashOp::kWrite;
  options.policy =
      arguments.policy == "durable" ? flash::Policy::kDurable : flash::Policy::kScratch;
  options.size_bytes = *size;
  options.area_bytes = *area / *size * *size;
  options.inflight = arguments.inflight;
  options.time = Duration(static_cast<std::int64_t>(arguments.seconds * 1e9));
  const auto result = bench::bench_flash(options);
  if (!result) {
    std::cerr << "hyperoffload bench flash: " << result.error().message() << "\n";
    return kExitIllegal;
  }
  if (arguments.json) {
    print_json(arguments, *size, *result);
  } else {
    print_words(arguments, *size, *result);
  }
  return kExitDone;
}

}  // namespace

void add_bench_flash(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command =
      *bench.add_subcommand("flash", "The flash store beside fio, on the same blocks of one file");
  command
      .add_option("--path", arguments->path,
                  "a file or block device without extents; a missing file is made and removed")
      ->required();
  command.add_option("--op", arguments->op, "read or write")
      ->check(CLI::IsMember({"read", "write"}))
      ->capture_default_str();
  command
      .add_option("--policy", arguments->policy, "scratch, or durable (beside fio --fdatasync=1)")
      ->check(CLI::IsMember({"scratch", "durable"}))
      ->capture_default_str();
  command.add_option("--size", arguments->size, "bytes of one operation, e.g. 4KiB or 1MiB")
      ->capture_default_str();
  command.add_option("--area", arguments->area, "bytes that both walk through at random")
      ->capture_default_str();
  command.add_option("--inflight", arguments->inflight, "operations kept going at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--seconds", arguments->seconds, "time of all turns together")
      ->check(CLI::Range(1.0, 600.0))
      ->capture_default_str();
  command.add_flag("--json", arguments->json, "one object on stdout");
  command.callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace ho::cli
