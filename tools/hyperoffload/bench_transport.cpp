#include <hyperoffload/hyperoffload.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "common/base/units.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/pool_bench.hpp"
#include "tools/bench/transport_bench.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {
namespace {

struct Arguments {
  std::string driver = "local";
  std::string op = "get";
  std::string size = "1MiB";
  std::uint32_t inflight = 16;
  double seconds = 3;
  std::uint32_t pause_us = 0;
  std::uint32_t threads = 0;  ///< 0: one; with a pool what a job has
  std::uint32_t connections = 1;
  std::uint32_t beside_inflight = 0;  ///< 0: none
  std::string pool;                   ///< empty: a daemon of its own
  bool json = false;
};

const std::map<std::string, bench::Driver> kDrivers = {
    {"local", bench::Driver::kLocal}, {"ofi", bench::Driver::kOfi}, {"ucx", bench::Driver::kUcx}};

std::string number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, std::isfinite(value) ? value : 0.0);
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string comparison_json(const bench::Comparison& comparison) {
  std::string out = "{\"name\": " + quoted(comparison.name);
  if (!comparison.not_measured.empty()) {
    return out + ", \"not_measured\": " + quoted(comparison.not_measured) + "}";
  }
  return out + ", \"bytes_per_s\": " + number(comparison.bytes_per_s, "%.0f") +
         ", \"ratio\": " + number(comparison.ratio, "%.4f") +
         ", \"ratio_low\": " + number(comparison.ratio_low, "%.4f") +
         ", \"ratio_high\": " + number(comparison.ratio_high, "%.4f") +
         ", \"p50_us\": " + number(comparison.p50_us, "%.3f") +
         ", \"p99_us\": " + number(comparison.p99_us, "%.3f") +
         ", \"p50_ratio\": " + number(comparison.p50_ratio, "%.3f") +
         ", \"p99_ratio\": " + number(comparison.p99_ratio, "%.3f") + "}";
}

void print_json(const Arguments& arguments, std::uint64_t size,
                const bench::TransportBenchResult& result) {
  std::cout << "{\"driver\": " << quoted(arguments.driver) << ", \"op\": " << quoted(arguments.op)
            << ", \"size\": " << size << ", \"inflight\": " << arguments.inflight
            << ", \"pause_us\": " << arguments.pause_us << ", \"threads\": " << arguments.threads
            << ", \"connections\": " << arguments.connections
            << ", \"bytes_per_s\": " << number(result.bytes_per_s, "%.0f")
            << ", \"ops_per_s\": " << number(result.ops_per_s, "%.1f")
            << ", \"p50_us\": " << number(result.p50_us, "%.3f")
            << ", \"p99_us\": " << number(result.p99_us, "%.3f")
            << ", \"limit\": " << comparison_json(result.limit) << ", \"beside\": [";
  for (std::size_t i = 0; i < result.beside.size(); ++i) {
    std::cout << (i == 0 ? "" : ", ") << comparison_json(result.beside[i]);
  }
  std::cout << "], \"machine\": " << quoted(bench::machine_class())
            << ", \"commit\": " << quoted(bench::build_commit()) << "}\n";
}

void print_line(const bench::Comparison& comparison) {
  if (!comparison.not_measured.empty()) {
    std::cout << "  " << comparison.name << ": not measured (" << comparison.not_measured << ")\n";
    return;
  }
  std::cout << "  " << comparison.name << ": " << number(comparison.bytes_per_s / 1e9, "%.2f")
            << " GB/s; ours is " << number(100 * comparison.ratio, "%.1f") << " % of it ("
            << number(100 * comparison.ratio_low, "%.1f") << " .. "
            << number(100 * comparison.ratio_high, "%.1f") << ")";
  if (comparison.p50_us > 0) {
    std::cout << ", p50 " << number(comparison.p50_us, "%.2f") << " us, p99 "
              << number(comparison.p99_us, "%.2f") << " us; ours take "
              << number(comparison.p50_ratio, "%.2f") << " and "
              << number(comparison.p99_ratio, "%.2f") << " times as long";
  }
  std::cout << "\n";
}

void print_words(const Arguments& arguments, std::uint64_t size,
                 const bench::TransportBenchResult& result) {
  std::cout << arguments.driver << " " << arguments.op << " " << format_bytes(size) << " x "
            << arguments.inflight << ": " << number(result.bytes_per_s / 1e9, "%.2f") << " GB/s, "
            << number(result.ops_per_s, "%.0f") << " ops/s, p50 " << number(result.p50_us, "%.2f")
            << " us, p99 " << number(result.p99_us, "%.2f") << " us\n";
  print_line(result.limit);
  for (const bench::Comparison& comparison : result.beside) print_line(comparison);
}

/// The same through the client library, against a running pool.
Result<bench::TransportBenchResult> run_on_pool(const Arguments& arguments,
                                                const bench::TransportBenchOptions& options) {
  auto rivals = bench::make_network_rivals(options.driver, options.shape);
  if (!rivals) return rivals.error();
  ho_connect_options connect{};
  connect.struct_bytes = sizeof connect;
  connect.pool = arguments.pool.c_str();
  connect.name = "hyperoffload bench transport";
  connect.transport = arguments.driver.c_str();
  connect.local_threads = arguments.threads;
  connect.ofi_connections = arguments.connections;
  ho_pool* pool = nullptr;
  if (const ho_status status = ho_connect(&connect, &pool); status != HO_OK) {
    return Error(static_cast<Errc>(status), ho_last_error());
  }
  auto result = bench::bench_pool(pool, options.shape, std::move(rivals->limits), options.time);
  ho_disconnect(pool);
  if (!result) return result.error();
  result->beside.insert(result->beside.end(), rivals->absent.begin(), rivals->absent.end());
  return result;
}

int run(const Arguments& arguments) {
  const auto size = parse_bytes(arguments.size);
  if (!size || *size == 0 || *size > kGiB) {
    std::cerr << "hyperoffload bench transport: --size: a size from 1 to 1GiB, not '"
              << arguments.size << "'\n";
    return kExitBadInput;
  }
  if (arguments.pause_us > 0 && arguments.driver == "local") {
    std::cerr << "hyperoffload bench transport: --pause: there is no target to sleep under local\n";
    return kExitBadInput;
  }
  if ((arguments.threads > 1 && arguments.driver != "local") ||
      (arguments.connections > 1 && arguments.driver != "ofi")) {
    std::cerr << "hyperoffload bench transport: --threads is of local, --connections of ofi\n";
    return kExitBadInput;
  }
  if (arguments.beside_inflight > arguments.inflight) {
    std::cerr << "hyperoffload bench transport: --beside-inflight: " << arguments.inflight
              << " (--inflight) at most\n";
    return kExitBadInput;
  }
  bench::TransportBenchOptions options;
  options.driver = kDrivers.at(arguments.driver);
  options.copy_threads = std::max(arguments.threads, 1U);
  options.connections = arguments.connections;
  options.beside_inflight = arguments.beside_inflight;
  options.shape.direction = arguments.op == "get" ? bench::Direction::kGet : bench::Direction::kPut;
  options.shape.size_bytes = *size;
  options.shape.inflight = arguments.inflight;
  options.shape.pause = std::chrono::microseconds(arguments.pause_us);
  options.time = Duration(static_cast<std::int64_t>(arguments.seconds * 1e9));
  const auto result =
      arguments.pool.empty() ? bench::bench_transport(options) : run_on_pool(arguments, options);
  if (!result) {
    std::cerr << "hyperoffload bench transport: " << result.error().message() << "\n";
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

void add_bench_transport(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *bench.add_subcommand(
      "transport", "One-sided get and put of a driver, against the limit of the same machine");
  command.add_option("--driver", arguments->driver, "local, ofi or ucx (needs an RDMA device)")
      ->check(CLI::IsMember(kDrivers))
      ->capture_default_str();
  command.add_option("--op", arguments->op, "get or put")
      ->check(CLI::IsMember({"get", "put"}))
      ->capture_default_str();
  command.add_option("--size", arguments->size, "bytes of one operation, e.g. 64 or 1MiB")
      ->capture_default_str();
  command.add_option("--inflight", arguments->inflight, "operations kept going at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("--seconds", arguments->seconds, "time of all measurement together")
      ->check(CLI::Range(0.2, 600.0))
      ->capture_default_str();
  auto* pause = command
                    .add_option("--pause", arguments->pause_us,
                                "microseconds from the end of an operation to the next one; 200: "
                                "both ends sleep in between")
                    ->check(CLI::Range(0, 20'000))
                    ->capture_default_str();
  command
      .add_option(
          "--threads", arguments->threads,
          "that share copies of 512 KiB and more over local, the limit has one; 0: one, and "
          "with --pool what a job has")
      ->check(CLI::Range(0, 4))
      ->capture_default_str();
  command
      .add_option("--connections", arguments->connections,
                  "that operations above 64 KiB are spread over, over ofi; the limit has one")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  auto* beside =
      command
          .add_option("--beside-inflight", arguments->beside_inflight,
                      "also the driver with so many in flight, in turns with the rest: whether "
                      "many are in each other's way; 0: not")
          ->check(CLI::Range(0, 4096))
          ->capture_default_str();
  command
      .add_option("--pool", arguments->pool,
                  "measure this running pool through the client library; default: the driver by "
                  "itself, with a daemon of its own")
      ->excludes(pause)
      ->excludes(beside);
  command.add_flag("--json", arguments->json, "one object on stdout");
  command.callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace ho::cli
