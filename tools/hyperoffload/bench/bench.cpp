// bench itself, and bench profile: a pool's links as a hardware file.
#include <memory>
#include <string>

#include "common/base/units.hpp"
#include "proto/files/convert.hpp"
#include "tools/bench/environment.hpp"
#include "tools/hyperoffload/pool/measured_hardware.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {
namespace {

struct BenchArguments : PoolOptions {
  std::string file;
  std::string transport = "auto";
  std::uint64_t device_memory = 0;
  Duration seconds = std::chrono::seconds(2);
};

std::string link_words(const Link& link) {
  return format_rate(static_cast<double>(link.bytes_per_s), "B/s") + ", " +
         format_duration_ns(link.latency_ns);
}

void add_tier(Facts& facts, const std::string& name, const std::optional<TierSpec>& tier) {
  if (!tier) return;
  facts.add(name, format_bytes(tier->capacity_bytes))
      .add("  read", link_words(tier->read))
      .add("  write", link_words(tier->write));
}

void write_link(JsonWriter& json, const char* name, const Link& link) {
  json.key(name).begin_object();
  json.field("bytes_per_s", link.bytes_per_s).field("latency_ns", link.latency_ns).end();
}

std::string to_json(const BenchArguments& arguments, const Hardware& hardware) {
  JsonWriter json;
  json.begin_object().field("file", arguments.file).field("name", hardware.name);
  json.field("device_bytes", hardware.device_bytes).key("tiers").begin_array();
  const auto write_tier = [&](const char* name, const std::optional<TierSpec>& tier) {
    if (!tier) return;
    json.begin_object().field("name", name).field("capacity_bytes", tier->capacity_bytes);
    write_link(json, "read", tier->read);
    write_link(json, "write", tier->write);
    json.end();
  };
  write_tier("local_ddr", hardware.local_ddr);
  write_tier("remote_ddr", hardware.remote_ddr);
  write_tier("flash", hardware.flash);
  json.end().field("commit", bench::build_commit()).end();
  return std::move(json).text();
}

std::string to_text(const BenchArguments& arguments, const Hardware& hardware, Format format) {
  Facts facts(hardware.name);
  add_tier(facts, "local_ddr", hardware.local_ddr);
  add_tier(facts, "remote_ddr", hardware.remote_ddr);
  add_tier(facts, "flash", hardware.flash);
  return facts.add("written", arguments.file).text(format);
}

int run_bench(Console& console, const BenchArguments& arguments) {
  const auto hardware = measured_hardware(
      console, arguments, {arguments.transport, arguments.device_memory, arguments.seconds});
  if (!hardware) return complain_about_pool(console, hardware.error());
  const auto written = write_hardware_file(*hardware, arguments.file);
  if (!written) return console.refuse(written.error());
  console.print(console.json() ? to_json(arguments, *hardware)
                               : to_text(arguments, *hardware, console.format()));
  return kExitDone;
}

void add_profile_options(CLI::App& command, BenchArguments& arguments,
                         const PoolOptions& defaults) {
  add_pool_options(command, arguments, defaults);
  command
      .add_option("--transport", arguments.transport,
                  "auto, or the drivers that may be used, comma-separated")
      ->type_name("NAMES")
      ->capture_default_str();
  add_size(command, "--device-memory", arguments.device_memory,
           "device memory to write into the file", {0, std::uint64_t{1} << 60U});
  add_seconds(command, arguments.seconds, "time of each tier's measurements");
}

/// `bench --profile FILE`, with the options of `bench profile FILE`, does the same. The help shows
/// only the command.
void add_profile_option(Program& program, CLI::App& bench, BenchArguments& arguments,
                        const PoolOptions& defaults, const Run& profile) {
  const CLI::Option* const file = bench.add_option("--profile", arguments.file);
  add_profile_options(bench, arguments, defaults);
  program.set_run(bench, [file, profile](Console& console) {
    if (file->count() > 0) return profile(console);
    return console.refuse(Error(Errc::kInvalidArgument,
                                "a command is missing; \"hyperoffload bench --help\" lists them"));
  });
  hide_options(bench);
}

}  // namespace

CLI::App& add_bench(Program& program, const PoolOptions& defaults) {
  CLI::App& bench =
      program.add_group("bench", "Measure this machine, and HyperOffload beside its limits");
  auto arguments = std::make_shared<BenchArguments>();
  const auto profile = [arguments](Console& console) { return run_bench(console, *arguments); };
  CLI::App& command = program.add(
      bench, "profile", "Measure a pool's links and write them as a hardware file", profile);
  command.add_option("FILE", arguments->file, "the file to write (.json), for analyze --hardware")
      ->required();
  add_profile_options(command, *arguments, defaults);
  set_manual(command,
             {"Nodes on this machine and all others are two tiers; each is measured alone, and "
              "so is flash. A tier has what is free now.",
              {"hyperoffload bench profile hw.json --device-memory 16GiB"},
              {{kExitDone, "written"}, {kExitPoolFailed, "the pool failed or cannot be reached"}}});
  add_profile_option(program, bench, *arguments, defaults, profile);
  return bench;
}

}  // namespace ho::cli
