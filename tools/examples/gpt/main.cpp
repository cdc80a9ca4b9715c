// hyperoffload-gpt: a transformer on the CPU, with its tensors in a HyperOffload pool.
#include <algorithm>
#include <csignal>

#include "common/base/signals.hpp"
#include "common/base/units.hpp"
#include "tools/bench/profile.hpp"
#include "tools/examples/gpt/commands.hpp"

namespace ho::gpt {
namespace {

volatile std::sig_atomic_t stop = 0;
extern "C" void on_signal(int) { stop = 1; }

cli::Exit exit_of(Errc code) {
  if (code == Errc::kInvalidArgument) return cli::kExitBadInput;
  if (code == Errc::kOutOfRange) return cli::kExitInfeasible;
  return stop_requested() ? cli::kExitInterrupted : cli::kExitPoolFailed;
}

}  // namespace

bool stop_requested() { return stop != 0; }

void add_pool(CLI::App& app, PoolArguments& into) {
  const auto add = [&app](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str();
  };
  cli::add_memory(app, "--device-memory", into.device_memory, "Or a share of the unmanaged peak");
  cli::add_rate(app, "--link", into.link_bytes_per_s, "Limit of the link to the pool, each way",
                {1e6, 1e12});
  add("--transport", into.transport, "Driver to the pool")
      ->check(CLI::IsMember({"auto", "local", "ucx", "ofi", "tcp"}));
  add("--pool", into.pool, "Control address of a daemon");
  add("--tls", into.tls, "Over TCP, the folder of node.crt, node.key and ca.crt");
}

hyperoffload::Pool connect(const PoolArguments& arguments) {
  hyperoffload::Pool::Options options;
  options.pool = arguments.pool;
  options.tls = arguments.tls;
  options.name = "gpt";
  options.transport = arguments.transport;
  options.link_bytes_per_s = std::uint64_t(arguments.link_bytes_per_s);
  return hyperoffload::Pool(options);
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

int ended(cli::Console& console, const std::function<Result<void>()>& work) {
  try {
    const auto done = work();
    return done ? cli::kExitDone : console.complain(done.error(), exit_of(done.error().code()));
  } catch (const hyperoffload::Error& thrown) {
    const auto code = static_cast<Errc>(thrown.status());
    return console.complain(Error(code, ho_last_error()), exit_of(code));
  }
}

}  // namespace ho::gpt

int main(int argc, char** argv) {
  ho::drop_library_signal_handlers();
  std::signal(SIGINT, ho::gpt::on_signal);
  std::signal(SIGTERM, ho::gpt::on_signal);
  ho::cli::Program program("hyperoffload-gpt", "Runs a small transformer in a HyperOffload pool.");
  ho::gpt::add_train(program);
  ho::gpt::add_generate(program);
  program.set_default_command("train");
  return program.run(argc, argv);
}
