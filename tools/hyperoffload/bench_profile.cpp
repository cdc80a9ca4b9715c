#include <hyperoffload/hyperoffload.h>

#include <iostream>
#include <memory>
#include <string>

#include "common/base/units.hpp"
#include "proto/convert.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/profile.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/pool_view.hpp"
#include "tools/hyperoffload/words.hpp"

namespace ho::cli {
namespace {

struct Arguments {
  std::string file;
  std::string pool;
  std::string transport = "auto";
  std::string device_memory = "0";
  double seconds = 2;
};

int complain(const Error& error) {
  std::cerr << "hyperoffload bench --profile: " << printable(error.message()) << "\n";
  return kExitIllegal;
}

/// What all nodes of the pool promise together.
struct Capacity {
  std::uint64_t ddr_bytes = 0;
  std::uint64_t flash_bytes = 0;
};

Result<Capacity> pool_capacity(const std::string& pool) {
  const TimePoint deadline = SteadyClock().now() + std::chrono::seconds(2);
  const auto view = open_pool(pool, deadline);
  if (!view) return view.error();
  const auto answers = ask_all<NodeStatus>(
      *view, deadline, [](ControlClient& node, TimePoint end) { return node.status(end); });
  Capacity capacity;
  for (const auto& answer : answers) {
    if (!answer.answer) return answer.answer.error();
    capacity.ddr_bytes += answer.answer->ddr_capacity_bytes;
    for (const FlashPathStatus& path : answer.answer->flash) {
      capacity.flash_bytes += path.capacity_bytes;
    }
  }
  return capacity;
}

int run(const Arguments& arguments) {
  const auto device_bytes = parse_bytes(arguments.device_memory);
  if (!device_bytes) {
    std::cerr << "hyperoffload bench --profile: --device-memory: not a size: '"
              << arguments.device_memory << "'\n";
    return kExitBadInput;
  }
  const auto capacity = pool_capacity(arguments.pool);
  if (!capacity) return complain(capacity.error());
  ho_connect_options connect{};
  connect.struct_bytes = sizeof connect;
  connect.pool = arguments.pool.c_str();
  connect.name = "hyperoffload bench --profile";
  connect.transport = arguments.transport.c_str();
  ho_pool* pool = nullptr;
  if (const ho_status status = ho_connect(&connect, &pool); status != HO_OK) {
    return complain(Error(static_cast<Errc>(status), ho_last_error()));
  }
  bench::ProfileOptions options;
  options.name = bench::machine_class();
  options.device_bytes = *device_bytes;
  options.capacity_bytes = capacity->ddr_bytes;
  options.flash_bytes = capacity->flash_bytes;
  options.time = Duration(static_cast<std::int64_t>(arguments.seconds * 1e9));
  const auto hardware = bench::measure_profile(pool, options);
  ho_disconnect(pool);
  if (!hardware) return complain(hardware.error());
  const auto written = write_hardware_file(*hardware, arguments.file);
  if (!written) {
    std::cerr << "hyperoffload bench --profile: " << written.error().message() << "\n";
    return kExitBadInput;
  }
  std::cerr << "wrote " << arguments.file << "\n";
  return kExitDone;
}

}  // namespace

void add_bench_profile(CLI::App& bench, const std::string& pool, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  arguments->pool = pool;
  CLI::Option* file = bench.add_option(
      "--profile", arguments->file,
      "measure a pool's links and write them as a hardware file (.json) for analyze --hardware");
  bench.add_option("--pool", arguments->pool, "with --profile: control addresses of the pool")
      ->capture_default_str();
  bench.add_option("--transport", arguments->transport, "with --profile: auto, local or ofi")
      ->check(CLI::IsMember({"auto", "local", "ofi"}))
      ->capture_default_str();
  bench
      .add_option("--device-memory", arguments->device_memory,
                  "with --profile: device memory to write into the file, e.g. 16GiB")
      ->capture_default_str();
  bench.add_option("--seconds", arguments->seconds, "with --profile: time of all measurement")
      ->check(CLI::Range(0.2, 600.0))
      ->capture_default_str();
  bench.callback([arguments, file, &bench, &exit_code] {
    if (!bench.get_subcommands().empty()) return;
    if (file->count() == 0) throw CLI::RequiredError("a subcommand or --profile FILE");
    exit_code = run(*arguments);
  });
}

}  // namespace ho::cli
