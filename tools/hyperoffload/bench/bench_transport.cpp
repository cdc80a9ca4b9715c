#include <map>
#include <string>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/pool/pool_bench.hpp"
#include "tools/bench/pool/profile.hpp"
#include "tools/bench/transport/transport_bench.hpp"
#include "tools/hyperoffload/bench/figures.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {
namespace {

struct BenchTransportArguments {
  std::string transport = "local";
  std::string op = "get";
  std::uint64_t size = kMiB;
  std::uint32_t inflight = 16;
  Duration seconds = std::chrono::seconds(3);
  Duration pause{0};
  std::string pool;  ///< empty: a daemon of its own
  std::string tls;   ///< as PoolOptions has it
};

const std::map<std::string, bench::Driver> kDrivers = {{"local", bench::Driver::kLocal},
                                                       {"ucx", bench::Driver::kUcx},
                                                       {"ofi", bench::Driver::kOfi},
                                                       {"tcp", bench::Driver::kTcp}};

void write(JsonWriter& json, const bench::Comparison& comparison) {
  json.begin_object().field("name", comparison.name);
  if (!comparison.not_measured.empty()) {
    json.field("not_measured", comparison.not_measured).end();
    return;
  }
  json.field("bytes_per_s", comparison.bytes_per_s)
      .field("ratio", comparison.ratio)
      .field("ratio_low", comparison.ratio_low)
      .field("ratio_high", comparison.ratio_high)
      .field("p50_us", comparison.p50_us)
      .field("p99_us", comparison.p99_us)
      .field("p50_ratio", comparison.p50_ratio)
      .field("p99_ratio", comparison.p99_ratio)
      .end();
}

std::string to_json(const BenchTransportArguments& arguments,
                    const bench::TransportBenchResult& result) {
  JsonWriter json;
  json.begin_object()
      .field("transport", arguments.transport)
      .field("op", arguments.op)
      .field("size", arguments.size)
      .field("inflight", arguments.inflight)
      .field("pause_us", arguments.pause.count() / 1000)
      .field("bytes_per_s", result.bytes_per_s)
      .field("ops_per_s", result.ops_per_s)
      .field("p50_us", result.p50_us)
      .field("p99_us", result.p99_us)
      .key("limit");
  write(json, result.limit);
  json.key("beside").begin_array();
  for (const bench::Comparison& comparison : result.beside) write(json, comparison);
  json.end().field("machine", bench::machine_class()).field("commit", bench::build_commit()).end();
  return std::move(json).text();
}

std::string words_of(const bench::Comparison& comparison) {
  if (!comparison.not_measured.empty()) return "not measured: " + comparison.not_measured;
  std::string words = format_rate(comparison.bytes_per_s, "B/s") +
                      number(100 * comparison.ratio, "; ours is %.1f %% of it (") +
                      number(100 * comparison.ratio_low, "%.1f .. ") +
                      number(100 * comparison.ratio_high, "%.1f)");
  if (comparison.p50_us > 0) {
    words += number(comparison.p50_us, "; p50 %.2f us, ") +
             number(comparison.p99_us, "p99 %.2f us; ours take ") +
             number(comparison.p50_ratio, "%.2f and ") +
             number(comparison.p99_ratio, "%.2f times as long");
  }
  return words;
}

std::string to_text(const BenchTransportArguments& arguments,
                    const bench::TransportBenchResult& result, Format format) {
  Facts facts(arguments.transport + " " + arguments.op + ", " + format_bytes(arguments.size) +
              " x " + std::to_string(arguments.inflight));
  facts.add("ours",
            format_rate(result.bytes_per_s, "B/s") + number(result.ops_per_s, ", %.0f ops/s, ") +
                number(result.p50_us, "p50 %.2f us, ") + number(result.p99_us, "p99 %.2f us"));
  facts.add(result.limit.name, words_of(result.limit));
  for (const bench::Comparison& one : result.beside) facts.add(one.name, words_of(one));
  return facts.text(format);
}

/// The same through the client library, in a running pool.
Result<bench::TransportBenchResult> run_on_pool(const BenchTransportArguments& arguments,
                                                const bench::TransportBenchOptions& options) {
  auto rivals = bench::make_network_rivals(options.driver, options.shape);
  if (!rivals) return rivals.error();
  const auto pool = bench::connect_pool(
      {arguments.pool, "hyperoffload bench transport", arguments.transport, arguments.tls});
  if (!pool) return pool.error();
  auto result =
      bench::bench_pool(pool->get(), options.shape, std::move(rivals->limits), options.time);
  if (!result) return result.error();
  result->beside.insert(result->beside.end(), rivals->absent.begin(), rivals->absent.end());
  return result;
}

int run_bench_transport(Console& console, const BenchTransportArguments& arguments) {
  if (arguments.pause > Duration::zero() && arguments.transport == "local") {
    return console.refuse(
        Error(Errc::kInvalidArgument, "--pause: over local no target is there to fall asleep"));
  }
  bench::TransportBenchOptions options;
  options.driver = kDrivers.at(arguments.transport);
  options.shape.direction = arguments.op == "get" ? bench::Direction::kGet : bench::Direction::kPut;
  options.shape.size_bytes = arguments.size;
  options.shape.inflight = arguments.inflight;
  options.shape.pause = arguments.pause;
  options.time = arguments.seconds;
  const auto result =
      arguments.pool.empty() ? bench::bench_transport(options) : run_on_pool(arguments, options);
  if (!result && result.error().code() == Errc::kUnsupported) {
    return console.complain(result.error(), kExitNo);
  }
  if (!result) return complain_about_pool(console, result.error());
  console.print(console.json() ? to_json(arguments, *result)
                               : to_text(arguments, *result, console.format()));
  return kExitDone;
}

}  // namespace

void add_bench_transport(Program& program, CLI::App& bench) {
  auto [command, arguments] = add_command<BenchTransportArguments>(
      program, bench, "transport", "One-sided get and put, beside the limit of the same machine",
      run_bench_transport);
  add_choice(command, "--transport", arguments.transport,
             "local, tcp, ucx (needs an RDMA device) or ofi", {"local", "tcp", "ucx", "ofi"});
  add_choice(command, "--op", arguments.op, "get or put", {"get", "put"});
  add_size(command, "--size", arguments.size, "of one operation", {1, kGiB});
  add_count(command, "--inflight", arguments.inflight, "operations in flight at a time", {1, 4096});
  add_seconds(command, arguments.seconds, "time of all measurements together");
  auto* const pause =
      add_time(command, "--pause", arguments.pause,
               "from the end of an operation to the next one; with 200us both ends fall asleep",
               {Duration::zero(), std::chrono::milliseconds(20)});
  command
      .add_option("--pool", arguments.pool,
                  "measure this running pool through the client library (default: the driver "
                  "alone, with a daemon of its own)")
      ->type_name("ADDRESS")
      ->excludes(pause);
  add_tls(command, arguments.tls);
  set_manual(command,
             {"Ours and the limit run in alternating turns of one run, so the ratio holds better "
              "than the rates. The limit is the best copy of this machine (local) or a plain "
              "program over the same library.",
              {"hyperoffload bench transport --transport local --op get --size 1MiB"},
              {{kExitDone, "measured"},
               {kExitNo, "this machine lacks what the transport needs"},
               {kExitPoolFailed, "the pool failed or cannot be reached"}}});
}

}  // namespace ho::cli
