// hyperoffload-gpt: a transformer on the CPU, with its tensors in a HyperOffload pool.
#include <algorithm>
#include <chrono>
#include <thread>

#include "common/base/units.hpp"
#include "common/cli/stop.hpp"
#include "common/system/standard_streams.hpp"
#include "tools/bench/pool/profile.hpp"
#include "tools/examples/gpt/commands.hpp"

namespace ho::gpt {
namespace {

constexpr auto kAskAgain = std::chrono::milliseconds(250);

cli::Exit exit_of(Errc code) {
  if (code == Errc::kInvalidArgument) return cli::kExitBadInput;
  if (code == Errc::kOutOfRange) return cli::kExitInfeasible;
  return stop_requested() ? cli::kExitInterrupted : cli::kExitPoolFailed;
}

}  // namespace

bool stop_requested() { return cli::stop_flag(); }

void add_pool(CLI::App& app, PoolArguments& into) {
  cli::add_memory(app, "--device-memory", into.device_memory,
                  "Or a share of the unmanaged peak (default: 60%)");
  cli::add_rate(app, "--link", into.link_bytes_per_s, "Limit of the link to the pool, each way",
                {1e6, 1e12});
  add_pool_address(app, into);
  app.add_option("--tls", into.tls, "Over TCP, the folder of node.crt, node.key and ca.crt")
      ->envname("HYPEROFFLOAD_TLS");
  cli::add_time(app, "--wait", into.wait,
                "How long to wait for memory that other jobs hold (default: not at all)",
                {Duration(0), std::chrono::hours(7 * 24)});
  app.add_option("--copies", into.copies,
                 "Homes on different nodes: N for persistent state, or KIND=N. "
                 "2,ACTIVATION=2,GRADIENT=2,INPUT=2 outlives any one node")
      ->type_name("[KIND=]N")
      ->delimiter(',')
      ->allow_extra_args(false);
  cli::add_time(app, "--repair-after", into.repair_after,
                "How long after a node is lost its values get another home (default: 60s)",
                {std::chrono::milliseconds(1), std::chrono::hours(24)});
}

hyperoffload::Pool connect(const PoolArguments& arguments) {
  hyperoffload::Pool::Options options;
  options.pool = arguments.pool;
  options.tls = arguments.tls;
  options.name = "gpt";
  options.transport = arguments.transport;
  options.link_bytes_per_s = std::uint64_t(arguments.link_bytes_per_s);
  options.repair_after_ms = std::uint32_t(
      std::chrono::duration_cast<std::chrono::milliseconds>(arguments.repair_after).count());
  hyperoffload::Pool pool(options);
  cli::catch_stop_signals();  // from here on there is something to give back
  return pool;
}

Result<Hardware> measure_links(hyperoffload::Pool& pool, const PoolArguments& arguments,
                               const JobBytes& job) {
  bench::ProfileOptions options;
  options.capacity_bytes = job.all;
  const std::uint64_t wanted = arguments.device_memory->of(job.peak);
  options.device_bytes = std::clamp<std::uint64_t>(wanted / 64 * 64, 64, job.all);
  options.area_bytes = std::clamp(job.all / 8, 16 * kMiB, 64 * kMiB);
  options.time = bench::profile_time(arguments.link_bytes_per_s);
  return bench::measure_profile(pool.get(), options);
}

namespace {

/// The library throws its errors.
Result<void> attempt(const std::function<Result<void>()>& work) {
  try {
    return work();
  } catch (const hyperoffload::Error& thrown) {
    return Error(static_cast<Errc>(thrown.status()), ho_last_error());
  }
}

}  // namespace

int ended(cli::Console& console, const PoolArguments& pool,
          const std::function<Result<void>()>& work) {
  const SteadyClock clock;
  const TimePoint end = clock.now() + pool.wait;
  bool told = false;
  while (true) {
    const auto done = attempt(work);
    if (done) return cli::kExitDone;
    const Error& why = done.error();
    if (why.code() != Errc::kExhausted || stop_requested() || clock.now() >= end) {
      return console.complain(why, exit_of(why.code()));
    }
    if (!told) console.note("waiting for memory: " + why.message());
    told = true;
    std::this_thread::sleep_for(kAskAgain);
  }
}

}  // namespace ho::gpt

int main(int argc, char** argv) {
  ho::open_standard_streams();
  ho::cli::Program program("hyperoffload-gpt", "Runs a small transformer in a HyperOffload pool.");
  ho::gpt::add_train(program);
  ho::gpt::add_generate(program);
  program.set_default_command("train");
  return program.run(argc, argv);
}
