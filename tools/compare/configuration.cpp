#include "tools/compare/configuration.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/cli/values.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/compare/lru.hpp"
#include "tools/compare/resident.hpp"

namespace ho::gpt {
namespace {

std::uint64_t total_bytes(const Graph& graph) {
  std::uint64_t sum = 0;
  for (const Storage& storage : graph.storages) sum += align_up(storage.bytes, 64);
  return sum;
}

Error infeasible(const analyzer::Infeasible& why, std::uint64_t budget_bytes) {
  return Error(Errc::kOutOfRange, "op " + why.op_name + " needs " + format_bytes(why.needs_bytes) +
                                      " of tier " + why.tier + ", the device budget is " +
                                      format_bytes(budget_bytes));
}

/// A size, or a share of `whole_bytes`, in whole multiples of 64.
Result<std::uint64_t> memory_bytes(const std::string& option, const std::string& text,
                                   std::uint64_t whole_bytes) {
  const Error bad(Errc::kInvalidArgument,
                  option + " takes bytes (\"256MiB\") or a share (\"60%\"), not \"" + text + "\"");
  const auto size = cli::parse_memory_size(text);
  if (!size) return bad;
  const std::uint64_t bytes = size->of(whole_bytes) / 64 * 64;
  if (bytes == 0) return bad;
  return bytes;
}

}  // namespace

std::string policy_name(PolicyKind policy) {
  switch (policy) {
    case PolicyKind::kResident: return "resident";
    case PolicyKind::kPlanned: return "planned";
    case PolicyKind::kOnDemandLru: return "on-demand-lru";
  }
  HO_CHECK(false);
  return {};
}

Result<std::uint64_t> device_budget_bytes(const Graph& graph, const std::string& text) {
  auto budget = memory_bytes("--device-memory", text, analyzer::peak_unmanaged_bytes(graph));
  if (!budget) return budget;
  // An arena larger than all storages side by side would waste real memory.
  std::uint64_t all_bytes = 0;
  for (const Storage& storage : graph.storages) all_bytes += align_up(storage.bytes, 64);
  return std::min(*budget, all_bytes);
}

Result<std::unique_ptr<Configuration>> Configuration::create(const ConfigurationSpec& spec,
                                                             Workbench& bench) {
  std::unique_ptr<Configuration> configuration(new Configuration(spec, bench));
  auto opened = configuration->open();
  if (!opened) return opened.error().at(spec.label);
  return configuration;
}

Result<void> Configuration::open() {
  record_.label = spec_.label;
  record_.policy = policy_name(spec_.policy);
  record_.transport = "none";
  if (spec_.policy == PolicyKind::kResident) {
    auto resident = Resident::create(bench_.model);
    if (!resident) return resident.error();
    record_.arena_bytes = (*resident)->arena().bytes();
    record_.device_budget_bytes = record_.arena_bytes;
    residence_ = std::move(resident).value();
  } else {
    auto opened = open_pool();
    if (!opened) return opened;
  }
  job_ = std::make_unique<Job>(bench_.model, bench_.text, *residence_, bench_.stop);
  return job_->initialise();
}

Result<void> Configuration::open_pool() {
  record_.device_budget_bytes = spec_.budget_bytes;
  record_.link_bytes_per_s = spec_.link_bytes_per_s;
  const LargestOp largest = largest_op(bench_.model);
  if (largest.bytes > spec_.budget_bytes) {  // before gigabytes are mapped and a pool is asked
    return infeasible({largest.op.value(), bench_.model.graph.ops[largest.op.value()].name,
                       "device", largest.bytes},
                      spec_.budget_bytes);
  }
  auto pool =
      connect({bench_.pool, bench_.transport, "gpt " + spec_.label, spec_.link_bytes_per_s});
  if (!pool) return pool.error();
  pool_ = std::move(pool).value();
  record_.transport = pool_->transport();
  auto arena = Arena::create(spec_.budget_bytes);
  if (!arena) return arena.error();
  arena_ = std::move(arena).value();
  record_.arena_bytes = arena_->bytes();
  if (spec_.policy == PolicyKind::kPlanned) return open_planned();
  auto lru = Lru::create(bench_.model, *pool_, *arena_);
  if (!lru) return lru.error();
  residence_ = std::move(lru).value();
  return {};
}

Result<void> Configuration::make_profile() {
  auto lru = Lru::create(bench_.model, *pool_, *arena_);
  if (!lru) return lru.error();
  Job job(bench_.model, bench_.text, **lru, bench_.stop);
  auto initialised = job.initialise();
  if (!initialised) return initialised;
  return profile_steps_of(job);
}

Result<void> Configuration::profile() { return profile_steps_of(*job_); }

Result<void> Configuration::profile_steps_of(Job& job) {
  constexpr int kSteps = 2;  // the first meets cold caches; each op's faster time counts
  Graph graph = bench_.model.graph;
  for (Op& op : graph.ops) op.duration_ns = UINT64_MAX;
  std::vector<std::uint64_t> kernel_ns(graph.ops.size());
  for (int i = 0; i < kSteps; ++i) {
    auto step = job.step(kernel_ns);
    if (!step) return step.error();
    for (std::size_t o = 0; o < graph.ops.size(); ++o) {
      graph.ops[o].duration_ns =
          std::min(graph.ops[o].duration_ns, std::max<std::uint64_t>(kernel_ns[o], 1));
    }
  }
  bench_.profile = std::move(graph);
  return {};
}

/// The pool's links, and as capacities what this configuration may use.
Result<Hardware> Configuration::measure() {
  const bool limited = !spec_.ddr_memory.empty();
  auto hardware =
      measure_pool(*pool_, {spec_.budget_bytes, total_bytes(*bench_.profile),
                            limited ? Flash::kMeasured : Flash::kUnused, spec_.link_bytes_per_s});
  if (!hardware) return hardware.error().at("measure pool");
  if (!limited) return hardware;
  if (!hardware->flash) return Error(Errc::kUnsupported, "the pool has no flash");
  // Staging slots are in memory of the node that has the flash, over whatever link the job reaches
  // it. The plan takes that for the local DDR.
  if (!hardware->local_ddr) hardware->local_ddr = std::exchange(hardware->remote_ddr, std::nullopt);
  const auto flash = std::exchange(hardware->flash, std::nullopt);
  std::uint64_t unlimited_bytes = 0;
  if (spec_.ddr_memory.back() == '%') {
    auto unlimited = plan(*hardware);
    if (!unlimited) return unlimited.error();
    unlimited_bytes = unlimited->local_ddr_bytes;
  }
  auto limit = memory_bytes("--ddr-memory", spec_.ddr_memory, unlimited_bytes);
  if (!limit) return limit.error();
  hardware->local_ddr->capacity_bytes = *limit;
  hardware->flash = flash;
  return hardware;
}

Result<schedule::Schedule> Configuration::plan(Hardware& hardware) {
  const bool share = !spec_.ddr_memory.empty() && spec_.ddr_memory.back() == '%';
  analyzer::Options options;
  options.device_budget_bytes = spec_.budget_bytes;
  while (true) {
    auto outcome = analyzer::analyze(*bench_.profile, hardware, options);
    if (!outcome) return outcome.error().at("analyze");
    const auto* const why = std::get_if<analyzer::Infeasible>(&*outcome);
    if (why == nullptr) return std::get<schedule::Schedule>(std::move(outcome).value());
    const bool grows = share && hardware.local_ddr && why->tier == "local_ddr" &&
                       why->needs_bytes > hardware.local_ddr->capacity_bytes;
    if (!grows) return infeasible(*why, spec_.budget_bytes);
    hardware.local_ddr->capacity_bytes = why->needs_bytes;
  }
}

Result<void> Configuration::open_planned() {
  if (!bench_.profile) {
    auto profiled = make_profile();
    if (!profiled) return profiled.error().at("profile");
  }
  auto hardware = measure();
  if (!hardware) return hardware.error();
  auto made = plan(*hardware);
  if (!made) return made.error();
  schedule_ = std::move(made).value();
  auto planned = Planned::create(bench_.model, *pool_, *arena_, *schedule_);
  if (!planned) return planned.error();
  planned_ = planned->get();
  residence_ = std::move(planned).value();
  return {};
}

Result<void> Configuration::step(Keep keep) {
  auto step = job_->step();
  if (!step) return step.error().at(spec_.label);
  record_.losses.push_back(step->loss);
  if (keep == Keep::kYes) record_.steps.push_back(*step);
  auto usage = residence_->usage();
  if (!usage) return usage.error();
  record_.peak_device_bytes = std::max(record_.peak_device_bytes, usage->peak_device_bytes);
  HO_CHECK(record_.peak_device_bytes <= record_.device_budget_bytes);
  return {};
}

Result<schedule::MeasuredStep> Configuration::timeline() const {
  HO_CHECK(planned_ != nullptr);
  return planned_->timeline();
}

}  // namespace ho::gpt
