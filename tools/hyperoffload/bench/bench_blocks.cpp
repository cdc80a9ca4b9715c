#include <memory>
#include <string>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/own_daemon.hpp"
#include "tools/bench/pool/blocks_bench.hpp"
#include "tools/bench/pool/profile.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {
namespace {

constexpr std::uint64_t kOwnSegmentBytes = 64 * kMiB;
constexpr std::uint64_t kOwnStoreBytes = 512 * kMiB;
constexpr std::uint32_t kExistsKeys = 10'000;

struct BenchBlocksArguments {
  std::string transport = "local";
  std::string op = "get";
  std::uint64_t size = 256 * kKiB;
  std::uint32_t batch = 64;
  std::uint32_t inflight = 2;
  Duration seconds = std::chrono::seconds(3);
  std::string pool;  ///< empty: a daemon of its own
  std::string tls;   ///< as PoolOptions has it
};

struct BenchBlocksMeasured {
  bench::TransportBenchResult blocks;
  bench::ExistsTimes exists;
};

std::string to_json(const BenchBlocksArguments& arguments, const BenchBlocksMeasured& measured) {
  const bench::Comparison& limit = measured.blocks.limit;
  JsonWriter json;
  json.begin_object()
      .field("transport", arguments.transport)
      .field("op", arguments.op)
      .field("size", arguments.size)
      .field("batch", arguments.batch)
      .field("inflight", arguments.inflight)
      .field("bytes_per_s", measured.blocks.bytes_per_s)
      .field("blocks_per_s", measured.blocks.ops_per_s)
      .key("limit")
      .begin_object()
      .field("name", limit.name)
      .field("bytes_per_s", limit.bytes_per_s)
      .field("ratio", limit.ratio)
      .field("ratio_low", limit.ratio_low)
      .field("ratio_high", limit.ratio_high)
      .end()
      .field("exists_keys", kExistsKeys)
      .field("exists_p50_us", measured.exists.p50_us)
      .field("exists_p99_us", measured.exists.p99_us)
      .field("machine", bench::machine_class())
      .field("commit", bench::build_commit())
      .end();
  return std::move(json).text();
}

std::string to_text(const BenchBlocksArguments& arguments, const BenchBlocksMeasured& measured,
                    Format format) {
  const bench::Comparison& limit = measured.blocks.limit;
  return Facts(arguments.transport + " " + arguments.op + " of blocks, " +
               format_bytes(arguments.size) + ", batches of " + std::to_string(arguments.batch) +
               ", " + std::to_string(arguments.inflight) + " at a time")
      .add("ours", format_rate(measured.blocks.bytes_per_s, "B/s"))
      .add(limit.name,
           format_rate(limit.bytes_per_s, "B/s") +
               formatted("; ours is %.1f %% of it (95 %%: %.1f .. %.1f)", 100 * limit.ratio,
                         100 * limit.ratio_low, 100 * limit.ratio_high))
      .add("exists for " + std::to_string(kExistsKeys) + " keys",
           formatted("p50 %.2f ms, p99 %.2f ms", measured.exists.p50_us / 1e3,
                     measured.exists.p99_us / 1e3))
      .text(format);
}

Result<BenchBlocksMeasured> measure(const BenchBlocksArguments& arguments,
                                    const std::string& address) {
  const auto pool = bench::connect_pool(
      {address, "hyperoffload bench blocks", arguments.transport, arguments.tls});
  if (!pool) return pool.error();
  bench::BlocksBenchOptions options;
  options.direction = arguments.op == "get" ? bench::Direction::kGet : bench::Direction::kPut;
  options.block_bytes = arguments.size;
  options.batch = arguments.batch;
  options.inflight = arguments.inflight;
  options.time = arguments.seconds;
  auto blocks = bench::bench_blocks(pool->get(), options);
  auto exists = blocks ? bench::bench_exists(pool->get(), kExistsKeys) : blocks.error();
  if (!exists) return exists.error();
  return BenchBlocksMeasured{std::move(*blocks), *exists};
}

int run_bench_blocks(Console& console, const BenchBlocksArguments& arguments) {
  std::unique_ptr<bench::OwnDaemon> own;
  if (arguments.pool.empty()) {
    bench::OwnDaemon::Options options;
    options.segment_bytes = kOwnSegmentBytes;
    options.ddr_bytes = 2 * kOwnStoreBytes;
    options.blocks_bytes = kOwnStoreBytes;
    if (arguments.transport != "local") options.network = arguments.transport;
    auto started = bench::OwnDaemon::start(options);
    if (!started) return console.complain(started.error(), kExitPoolFailed);
    own = std::move(*started);
  }
  const auto measured = measure(arguments, own ? own->address() : arguments.pool);
  if (!measured && measured.error().code() == Errc::kUnsupported) {
    return console.complain(measured.error(), kExitNo);
  }
  if (!measured) return complain_about_pool(console, measured.error());
  console.print(console.json() ? to_json(arguments, *measured)
                               : to_text(arguments, *measured, console.format()));
  return kExitDone;
}

}  // namespace

void add_bench_blocks(Program& program, CLI::App& bench) {
  auto [command, arguments] = add_command<BenchBlocksArguments>(
      program, bench, "blocks", "Put and get of KV blocks, beside plain transfers",
      run_bench_blocks);
  add_choice(command, "--transport", arguments.transport, "local, tcp, ucx or ofi",
             {"local", "tcp", "ucx", "ofi"});
  add_choice(command, "--op", arguments.op, "get, or put of new blocks", {"get", "put"});
  add_size(command, "--size", arguments.size, "of a block", {4 * kKiB, 4 * kMiB});
  add_count(command, "--batch", arguments.batch, "blocks in a request", {1, 1024});
  add_count(command, "--inflight", arguments.inflight, "requests at a time", {1, 16});
  add_seconds(command, arguments.seconds, "time of the transfers");
  command
      .add_option("--pool", arguments.pool,
                  "measure this running pool (default: a daemon of its own)")
      ->type_name("ADDRESS");
  add_tls(command, arguments.tls);
  set_manual(command,
             {"Ours and plain transfers of the same pool run in alternating turns of one run. Ours "
              "asks where the blocks are and compares their checksums. In a running pool it uses "
              "the tenant \"bench\".",
              {"hyperoffload bench blocks --transport local --op get"},
              {{kExitDone, "measured"},
               {kExitNo, "the pool has no block store, or this machine lacks the transport"},
               {kExitPoolFailed, "the pool failed or cannot be reached"}}});
}

}  // namespace ho::cli
