// The clock, the network and the run of a simulated supernode.
#include "tests/sim/pool/sim_world.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "common/base/check.hpp"
#include "tests/sim/pool/pool_job.hpp"
#include "tests/sim/pool/sim_daemon.hpp"

namespace ho::test {
namespace {

/// After the faults: for values to be copied again and jobs to make more steps.
constexpr Duration kHealTime = std::chrono::seconds(5);
/// By then all jobs have ended, or never will.
constexpr Duration kEndTime = std::chrono::seconds(30);

struct CountName {
  const char* name;
  std::uint64_t SimCounts::*count;
};
constexpr auto kCounts = std::to_array<CountName>({
    {"kills", &SimCounts::kills},
    {"torn appends", &SimCounts::torn_appends},
    {"restarts", &SimCounts::restarts},
    {"new starts", &SimCounts::new_starts},
    {"stops", &SimCounts::stops},
    {"drains", &SimCounts::drains},
    {"cuts", &SimCounts::cuts},
    {"breaks", &SimCounts::breaks},
    {"job pauses", &SimCounts::job_pauses},
    {"job kills", &SimCounts::job_kills},
    {"book faults", &SimCounts::book_faults},
    {"late nodes", &SimCounts::late_nodes},
    {"steps", &SimCounts::steps},
    {"gets", &SimCounts::gets},
    {"resumed", &SimCounts::resumed},
    {"lost nodes", &SimCounts::lost_nodes},
    {"repaired", &SimCounts::repaired},
    {"found nodes", &SimCounts::found_nodes},
    {"lapsed", &SimCounts::lapsed},
    {"failed jobs", &SimCounts::failed_jobs},
    {"finished jobs", &SimCounts::finished_jobs},
    {"events", &SimCounts::events},
    {"stale values", &SimCounts::stale_values},
    {"published", &SimCounts::published},
    {"object reads", &SimCounts::object_reads},
});

}  // namespace

SimWorld::SimWorld(const SimOptions& options) : options_(options), random_(options.seed) {
  delay_max_ = any(Duration{20'000}, Duration{2'000'000});
  for (std::uint32_t i = 0; i < options_.nodes; ++i) add_machine(i);
  for (const auto& machine : machines_) machine->start();
  fibers_.run_until(now() + std::chrono::milliseconds(1200));  // all have read the phone book
  for (std::uint32_t i = 0; i < options_.jobs; ++i) {
    jobs_.push_back(std::make_unique<PoolJob>(*this, i));
  }
}

SimWorld::~SimWorld() = default;

void SimWorld::add_machine(std::uint32_t node) {
  const std::string rack =
      options_.racks == 0 ? "" : "rack " + std::to_string(node % options_.racks);
  machines_.push_back(std::make_unique<SimMachine>(*this, node, rack));
}

Duration SimWorld::any(Duration least, Duration most) {
  const auto spread = static_cast<std::uint64_t>((most - least).count());
  return least + Duration(static_cast<std::int64_t>(random_.below(spread + 1)));
}

void SimWorld::wrong(const std::string& what) {
  if (!wrong_.empty()) return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now().time_since_epoch());
  wrong_ = "at " + std::to_string(ms.count()) + " ms: " + what;
}

void SimWorld::trace(std::string_view what, std::uint64_t a, std::uint64_t b) {
  const auto mix = [this](std::uint64_t word) {
    trace_ = (trace_ ^ word) * 1099511628211U;
    trace_ ^= trace_ >> 29U;
  };
  if (std::getenv("HO_SIM_LOG") != nullptr) {
    std::fprintf(stderr, "%10.3f ms  %.*s %llu %llu\n",
                 static_cast<double>(now().time_since_epoch().count()) / 1e6,
                 static_cast<int>(what.size()), what.data(), static_cast<unsigned long long>(a),
                 static_cast<unsigned long long>(b));
  }
  for (const char letter : what) mix(static_cast<unsigned char>(letter));
  mix(static_cast<std::uint64_t>(now().time_since_epoch().count()));
  mix(a);
  mix(b);
}

std::shared_ptr<SimControl> SimWorld::open_control(std::uint32_t job, SimDaemon& daemon) {
  auto control = std::make_shared<SimControl>();
  control->job = job;
  control->hello = daemon.hello();
  control->node = control->hello.node.value() - 1;
  std::erase_if(controls_, [](const auto& one) { return one->closed; });
  controls_.push_back(control);
  return control;
}

void SimWorld::at_daemon(std::uint32_t node, std::uint64_t instance, TimePoint time,
                         std::function<void(SimDaemon&)> act) {
  fibers_.at(time, [this, node, instance, act = std::move(act)] {
    SimMachine& there = machine(node);
    if (there.process == nullptr || there.process->instance() != instance) return;
    run_at(*there.process, act);
  });
}

/// Runs it now, or when the process goes on.
void SimWorld::run_at(SimDaemon& daemon, const std::function<void(SimDaemon&)>& act) {
  const std::uint32_t node = daemon.hello().node.value() - 1;
  if (machine(node).stopped) return daemon.inbox.push_back(act);
  try {
    act(daemon);
  } catch (const DaemonKilled&) {
    kill(node);
  }
}

void SimWorld::send(const std::shared_ptr<SimControl>& control,
                    std::function<void(SimDaemon&)> act) {
  control->last_out = std::max(control->last_out, now() + delay());
  fibers_.at(control->last_out, [this, control, act = std::move(act)] { arrive(control, act); });
}

void SimWorld::arrive(const std::shared_ptr<SimControl>& control,
                      const std::function<void(SimDaemon&)>& act) {
  if (control->closed) return;
  if (is_cut(control->job, control->node)) {
    control->held.push_back([this, control, act] { arrive(control, act); });
    return;
  }
  SimMachine& there = machine(control->node);
  const bool lives =
      there.process != nullptr && there.process->instance() == control->hello.daemon_instance;
  if (lives) run_at(*there.process, act);
}

void SimWorld::answer(const std::shared_ptr<SimControl>& control, std::function<void()> act) {
  control->last_in = std::max(control->last_in, now() + delay());
  fibers_.at(control->last_in, [this, control, act = std::move(act)] {
    if (control->closed) return;
    if (is_cut(control->job, control->node)) {
      control->held.push_back(act);
    } else {
      act();
    }
  });
}

void SimWorld::close(const std::shared_ptr<SimControl>& control) {
  if (control->closed) return;
  control->closed = true;
  control->held.clear();
  if (control->job < jobs_.size()) jobs_[control->job]->connection_closed();
}

void SimWorld::close_all(std::uint32_t node, std::uint64_t instance) {
  for (const auto& control : controls_) {
    if (control->node != node || control->hello.daemon_instance != instance) continue;
    answer(control, [this, control] { close(control); });
  }
}

void SimWorld::cut(std::uint32_t job, std::uint32_t node) {
  cut_.insert({job, node});
  way_disturbed_[{job, node}] = now();
  jobs_[job]->network_changed(node);
  trace("cut", job, node);
}

void SimWorld::join(std::uint32_t job, std::uint32_t node) {
  if (cut_.erase({job, node}) == 0) return;
  way_disturbed_[{job, node}] = now();
  jobs_[job]->network_changed(node);
  for (const auto& control : std::vector(controls_)) {
    if (control->job != job || control->node != node) continue;
    auto held = std::exchange(control->held, {});
    for (auto& act : held) fibers_.at(now(), std::move(act));
  }
  trace("join", job, node);
}

bool SimWorld::disturbed(std::uint32_t job, std::uint32_t node, Duration within) const {
  const SimMachine& there = *machines_[node];
  if (there.process == nullptr || there.stopped || is_cut(job, node)) return true;
  const auto of_node = disturbed_.find(node);
  if (of_node != disturbed_.end() && now() - of_node->second <= within) return true;
  const auto of_way = way_disturbed_.find({job, node});
  return of_way != way_disturbed_.end() && now() - of_way->second <= within;
}

std::uint32_t SimWorld::disturbed_nodes(std::uint32_t job, Duration within) const {
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < nodes(); ++i) count += disturbed(job, i, within) ? 1 : 0;
  return count;
}

SimResult SimWorld::run() {
  const TimePoint begin = now();
  if (options_.faults) next_fault();
  while (now() < begin + options_.fault_time && !is_wrong() && fibers_.step()) {
  }
  heal();
  const TimePoint healed = now();
  while (now() < healed + kHealTime && !is_wrong() && fibers_.step()) {
  }
  for (const auto& job : jobs_) {
    if (!is_wrong()) job->check_healed();
  }
  closing_ = true;
  const TimePoint closed = now();
  const auto all_over = [this] {
    return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->over(); });
  };
  while (!all_over() && now() < closed + kEndTime && !is_wrong() && fibers_.step()) {
  }
  if (!all_over()) wrong("a job never ends");
  const TimePoint ended = now();
  while (now() < ended + 2 * kSimLease && !is_wrong() && fibers_.step()) {
  }
  if (!is_wrong()) check_end();
  counts_.events = fibers_.events();
  trace("end", counts_.events, random_.next());
  return {wrong_, trace_, counts_};
}

/// All sessions have ended or lapsed: nothing is left of them.
void SimWorld::check_end() {
  for (const auto& machine : machines_) {
    HO_CHECK(machine->process != nullptr);
    const daemon::Pool& pool = machine->process->pool();
    const std::string name = "n" + std::to_string(machine->node);
    if (!pool.sessions().empty()) wrong(name + " has a session that no job has");
    if (pool.granted_bytes() != 0) wrong(name + " has bytes that no session has");
    if (!machine->store.empty()) wrong(name + " has memory that no session has");
    for (const auto& memory : machine->freed) {
      const bool whole = std::all_of(memory->begin(), memory->end(),
                                     [](std::byte byte) { return byte == std::byte{0xdd}; });
      if (!whole) wrong("memory of " + name + " was written after its session had ended");
    }
  }
}

void SimCounts::add(const SimCounts& other) {
  for (const auto& [name, count] : kCounts) this->*count += other.*count;
}

std::string SimCounts::text() const {
  std::string out;
  for (const auto& [name, count] : kCounts) {
    out += (out.empty() ? "" : ", ") + std::to_string(this->*count) + " " + name;
  }
  return out;
}

}  // namespace ho::test
