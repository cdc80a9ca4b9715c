// What happens to the nodes, the network, the phone book and the jobs of a simulated supernode.
#include <algorithm>

#include "tests/sim/pool/pool_job.hpp"
#include "tests/sim/pool/sim_daemon.hpp"
#include "tests/sim/pool/sim_world.hpp"

namespace ho::test {
namespace {

using std::chrono::milliseconds;

}  // namespace

/// Most runs are about a few nodes: then what is promised for the loss of one at a time holds.
std::uint32_t SimWorld::any_node() {
  if (victims_.empty()) {
    const std::uint64_t many = options_.restarts_only ? 0 : random_.below(4);
    const std::uint64_t count = many == 0 ? nodes() : 1 + random_.below(2);
    while (victims_.size() < std::min<std::uint64_t>(count, nodes())) {
      victims_.insert(static_cast<std::uint32_t>(random_.below(nodes())));
    }
  }
  auto at = victims_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random_.below(victims_.size())));
  return *at;
}

void SimWorld::next_fault() {
  fibers_.at(now() + any(milliseconds(5), milliseconds(900)), [this] {
    if (healed_) return;
    if (random_.below(2) == 0) {
      one_fault();
    } else {
      at_a_bad_moment([this] { one_fault(); });
    }
    next_fault();
  });
}

/// While bytes are on their way, or some of several grants are answered: few moments of a run are.
void SimWorld::at_a_bad_moment(std::function<void()> fault) { ambush_ = std::move(fault); }

void SimWorld::bad_moment() {
  if (!ambush_) return;
  fibers_.at(now() + any(Duration{0}, Duration{200'000}), [this] {
    const auto fault = std::exchange(ambush_, nullptr);
    if (fault && !healed_) fault();
  });
}

void SimWorld::one_fault() {
  const std::uint32_t node = any_node();
  SimMachine& there = machine(node);
  if (options_.restarts_only) {
    if (there.process != nullptr) kill(node);
    return;
  }
  switch (random_.below(17)) {
    case 0:
    case 1:
      if (there.process != nullptr) kill(node);
      break;
    case 2:
    case 3:
      // In the middle of the next append to its manifest, if there is one soon.
      if (there.process == nullptr) break;
      there.cut_append = static_cast<std::uint32_t>(random_.below(100));
      fibers_.at(now() + milliseconds(500), [this, node, instance = there.process->instance()] {
        SimMachine& then = machine(node);
        const bool same = then.process != nullptr && then.process->instance() == instance;
        if (same) then.cut_append.reset();
      });
      break;
    case 4:
    case 5: {
      const bool lasts = random_.below(3) == 0;
      stop(node, any(milliseconds(1), lasts ? milliseconds(5000) : milliseconds(700)));
      break;
    }
    case 15:
    case 16: {
      // Late, but not lost: the node that bytes move with.
      const auto busy =
          jobs_.empty() ? std::nullopt : jobs_[random_.below(jobs_.size())]->busy_node();
      if (busy) stop(*busy, any(milliseconds(60), milliseconds(700)));
      break;
    }
    case 6: drain(node); break;
    case 7: fault_of_network(); break;
    case 13:
    case 14:
      if (!jobs_.empty()) {
        const auto job = static_cast<std::uint32_t>(random_.below(jobs_.size()));
        break_connections(job, jobs_[job]->busy_node().value_or(node));
      }
      break;
    case 8:
    case 9: fault_of_job(); break;
    case 10: fault_of_book(); break;
    case 11:
      if (jobs_.size() >= options_.jobs + 4) break;
      jobs_.push_back(std::make_unique<PoolJob>(*this, static_cast<std::uint32_t>(jobs_.size())));
      break;
    default:
      if (nodes() < options_.nodes + options_.late_nodes) {
        add_machine(nodes());
        machines_.back()->start();
        counts_.late_nodes += 1;
      }
  }
}

/// Troubles come together: a job that does not hear of it, or another node that is to be emptied.
void SimWorld::beside(std::uint32_t node) {
  if (healed_ || jobs_.empty() || options_.restarts_only) return;
  if (random_.below(4) == 0) cut_for_a_while(node, Breaks::kNo);
  if (random_.below(3) == 0) drain(static_cast<std::uint32_t>(random_.below(nodes())));
}

/// Another daemon comes after a while: soon enough for jobs to resume their sessions, most times.
void SimWorld::kill(std::uint32_t node) {
  const bool anew = !options_.restarts_only && random_.below(4) == 0;
  disturb(node);
  counts_.kills += 1;
  beside(node);
  // A job that hears of it late meets sessions that others have opened since.
  if (anew && !jobs_.empty() && random_.below(2) == 0) {
    cut_for(node, any(milliseconds(400), milliseconds(1800)), Breaks::kNo);
  }
  machine(node).kill(anew ? SimMachine::Left::kNothing : SimMachine::Left::kKept);
  const bool late = !options_.restarts_only && random_.below(5) == 0;
  const Duration gone = any(
      milliseconds(2), late ? milliseconds(5000) : milliseconds(options_.restarts_only ? 90 : 900));
  fibers_.at(now() + gone, [this, node] { begin_again(node); });
}

void SimWorld::begin_again(std::uint32_t node) {
  SimMachine& there = machine(node);
  if (there.process != nullptr) return;
  disturb(node);
  (there.manifest.empty() ? counts_.new_starts : counts_.restarts) += 1;
  there.start();
  if (there.process == nullptr)
    fibers_.at(now() + milliseconds(100), [this, node] { begin_again(node); });
}

void SimWorld::stop(std::uint32_t node, Duration pause) {
  SimMachine& there = machine(node);
  if (there.process == nullptr || there.stopped) return;
  disturb(node);
  counts_.stops += 1;
  beside(node);
  trace("stopped", node);
  there.stopped = true;
  there.stood_since = now();
  fabric_.stop_peer(there.process->address());
  fibers_.at(now() + pause, [this, node, instance = there.process->instance()] {
    SimMachine& then = machine(node);
    if (then.process != nullptr && then.process->instance() == instance) go_on(node);
  });
}

void SimWorld::go_on(std::uint32_t node) {
  SimMachine& there = machine(node);
  if (!there.stopped) return;
  disturb(node);
  trace("goes on", node);
  there.note_pause();
  there.stopped = false;
  fabric_.resume_peer(there.process->address());
  run_at(*there.process, [](SimDaemon& daemon) { daemon.go_on(); });
  if (healed_ || random_.below(4) != 0) return;
  // All that waited for it comes at once, which is often too much for a process.
  const auto soon = now() + any(milliseconds(0), milliseconds(200));
  fibers_.at(soon, [this, node] {
    if (!healed_ && machine(node).process != nullptr) kill(node);
  });
}

void SimWorld::drain(std::uint32_t node) {
  SimMachine& there = machine(node);
  if (there.process == nullptr || there.stopped) return;
  counts_.drains += 1;
  there.drained = !there.drained;
  there.process->set_drained(there.drained);
  trace("drained", node, there.drained ? 1 : 0);
}

void SimWorld::fault_of_network() {
  if (jobs_.empty()) return;
  cut_for_a_while(any_node(), random_.below(3) == 0 ? Breaks::kYes : Breaks::kNo);
}

void SimWorld::cut_for_a_while(std::uint32_t node, Breaks breaks) {
  const bool lasts = random_.below(3) == 0;
  cut_for(node, any(milliseconds(1), lasts ? milliseconds(5000) : milliseconds(600)), breaks);
}

void SimWorld::cut_for(std::uint32_t node, Duration pause, Breaks breaks) {
  const auto job = static_cast<std::uint32_t>(random_.below(jobs_.size()));
  if (is_cut(job, node)) return;
  counts_.cuts += 1;
  cut(job, node);
  fibers_.at(now() + pause, [this, job, node, breaks] {
    if (!is_cut(job, node)) return;
    join(job, node);
    if (breaks == Breaks::kYes) break_connections(job, node);
  });
}

/// A router that forgot the connections: both ends learn of it once they send.
void SimWorld::break_connections(std::uint32_t job, std::uint32_t node) {
  counts_.breaks += 1;
  way_disturbed_[{job, node}] = now();
  trace("breaks", job, node);
  for (const auto& control : std::vector(controls_)) {
    if (control->job == job && control->node == node) close(control);
  }
}

void SimWorld::fault_of_job() {
  const auto job = static_cast<std::uint32_t>(random_.below(jobs_.size()));
  if (random_.below(4) == 0 && jobs_.size() > 1) {
    counts_.job_kills += jobs_[job]->over() ? 0 : 1;
    jobs_[job]->kill();
    return;
  }
  counts_.job_pauses += 1;
  jobs_[job]->pause();
  const bool lasts = random_.below(4) == 0;
  fibers_.at(now() + any(milliseconds(1), lasts ? milliseconds(6000) : milliseconds(600)),
             [this, job] { jobs_[job]->go_on(); });
}

void SimWorld::fault_of_book() {
  counts_.book_faults += 1;
  if (random_.below(2) == 0) {
    book_.gone = !book_.gone;
  } else if (!book_.stale) {
    book_.old = {book_.version(), book_.list()};
    book_.stale = true;
  } else {
    book_.stale = false;
  }
}

/// From now on nothing goes wrong, and all that stood still or was cut off goes on.
void SimWorld::heal() {
  healed_ = true;
  book_.gone = book_.stale = false;
  for (const auto& [job, node] : std::set(cut_)) join(job, node);
  for (std::uint32_t i = 0; i < nodes(); ++i) {
    machine(i).cut_append.reset();
    if (machine(i).process == nullptr) begin_again(i);
    if (machine(i).stopped) go_on(i);
  }
  for (const auto& job : jobs_) job->go_on();
  trace("healed");
}

}  // namespace ho::test
