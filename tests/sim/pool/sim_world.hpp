#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/membership/member_table.hpp"
#include "proto/control/control_values.hpp"
#include "tests/sim/pool/fibers.hpp"
#include "tests/sim/pool/planted.hpp"
#include "tests/support/sim_transport.hpp"

namespace ho::test {

class SimDaemon;
class SimMachine;
class PoolJob;

/// Sessions of the simulation. A daemon stopped for less than this is out of reach for no job.
inline constexpr Duration kSimLease = std::chrono::seconds(3);
/// For so long a job looks for the next daemon.
inline constexpr Duration kSimResume = std::chrono::seconds(2);
inline constexpr std::uint64_t kSimSegmentBytes = 2 * 1024 * 1024;
/// The length of a part of an object that a job publishes.
inline constexpr std::uint64_t kObjectBytes = 12 * 1024;
/// For the answer to any control request, as client/pool has it.
inline constexpr Duration kControlTimeout = std::chrono::seconds(2);
/// A simulated segment has this part of its bytes, and jobs take it for the whole.
inline constexpr std::uint64_t kSimBackedBytes = 32 * 1024;

/// One control connection of a job with one daemon process. Messages of one direction keep their
/// order. Stands for proto/control/control_client and the daemon's channel.
struct SimControl {
  std::uint32_t job = 0;
  std::uint32_t node = 0;
  HelloReply hello;
  bool closed = false;
  TimePoint last_out;
  TimePoint last_in;
  std::deque<std::function<void()>> held;  ///< while the network is cut
};

/// etcd as daemons see it: it may be gone, or answer with old data.
struct SimBook {
  std::uint64_t cluster = 1;
  std::int64_t revision = 1;
  std::map<NodeId, daemon::Member> members;
  std::map<NodeId, TimePoint> renewed;
  bool gone = false;
  bool stale = false;  ///< answers as of `old`
  std::pair<daemon::BookVersion, std::vector<daemon::Member>> old;

  [[nodiscard]] daemon::BookVersion version() const { return {cluster, revision}; }
  [[nodiscard]] std::vector<daemon::Member> list() const;
};

/// How often things happened, for tests that the faults of a run are not too few.
struct SimCounts {
  std::uint64_t kills = 0;
  std::uint64_t torn_appends = 0;
  std::uint64_t restarts = 0;  ///< with memory
  std::uint64_t new_starts = 0;
  std::uint64_t stops = 0;
  std::uint64_t drains = 0;
  std::uint64_t cuts = 0;
  std::uint64_t breaks = 0;
  std::uint64_t job_pauses = 0;
  std::uint64_t job_kills = 0;
  std::uint64_t book_faults = 0;
  std::uint64_t late_nodes = 0;
  std::uint64_t steps = 0;
  std::uint64_t gets = 0;  ///< operands that were compared
  std::uint64_t resumed = 0;
  std::uint64_t lost_nodes = 0;  ///< times that a job lost one
  std::uint64_t repaired = 0;
  std::uint64_t found_nodes = 0;
  std::uint64_t lapsed = 0;
  std::uint64_t failed_jobs = 0;
  std::uint64_t finished_jobs = 0;
  std::uint64_t events = 0;
  std::uint64_t stale_values = 0;
  std::uint64_t published = 0;  ///< versions of objects
  std::uint64_t object_reads = 0;

  void add(const SimCounts& other);
  [[nodiscard]] std::string text() const;
};

struct SimOptions {
  std::uint64_t seed = 0;
  std::uint32_t nodes = 3;
  std::uint32_t late_nodes = 0;  ///< that come later
  std::uint32_t racks = 0;       ///< 0: nodes name none
  std::uint32_t jobs = 1;
  std::uint64_t plans = 4;  ///< each job has one of so many
  bool faults = true;
  /// Daemons are restarted with their memory, soon and often, and values have one home: a job may
  /// still lose nothing.
  bool restarts_only = false;
  Duration fault_time = std::chrono::seconds(6);  ///< faults happen from the start until then
  Planted planted = Planted::kNothing;
};

struct SimResult {
  std::string wrong;  ///< the first broken promise, in words; empty: none
  std::uint64_t trace = 0;
  SimCounts counts;
};

/// A supernode in one thread: machines with daemons, a phone book, a network and jobs, on one
/// clock, with faults. One seed fixes all of it.
class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options);
  ~SimWorld();

  [[nodiscard]] SimResult run();

  // For the parts.
  [[nodiscard]] TimePoint now() const { return clock_.now(); }
  [[nodiscard]] const SimClock& clock() const { return clock_; }
  [[nodiscard]] Fibers& fibers() { return fibers_; }
  [[nodiscard]] SimFabric& fabric() { return fabric_; }
  [[nodiscard]] Prng& random() { return random_; }
  [[nodiscard]] SimBook& book() { return book_; }
  [[nodiscard]] SimCounts& counts() { return counts_; }
  [[nodiscard]] SimMachine& machine(std::uint32_t node) { return *machines_[node]; }
  [[nodiscard]] std::uint32_t nodes() const { return static_cast<std::uint32_t>(machines_.size()); }
  [[nodiscard]] bool planted(Planted bug) const { return options_.planted == bug; }
  [[nodiscard]] const SimOptions& options() const { return options_; }
  /// Jobs begin no further step.
  [[nodiscard]] bool closing() const { return closing_; }
  /// No fault happens any more, and all is in reach again.
  [[nodiscard]] bool healed() const { return healed_; }
  [[nodiscard]] Duration any(Duration least, Duration most);

  /// A promise is broken. The first one counts.
  void wrong(const std::string& what);
  [[nodiscard]] bool is_wrong() const { return !wrong_.empty(); }
  /// Part of what two runs of a seed must have in common.
  void trace(std::string_view what, std::uint64_t a = 0, std::uint64_t b = 0);

  // The network.
  [[nodiscard]] bool is_cut(std::uint32_t job, std::uint32_t node) const {
    return cut_.contains({job, node});
  }
  void cut(std::uint32_t job, std::uint32_t node);
  void join(std::uint32_t job, std::uint32_t node);
  /// Runs `act` at the daemon that the connection is with, unless it or the connection ends before.
  void send(const std::shared_ptr<SimControl>& control, std::function<void(SimDaemon&)> act);
  /// Runs `act` at the job.
  void answer(const std::shared_ptr<SimControl>& control, std::function<void()> act);
  void close(const std::shared_ptr<SimControl>& control);
  /// The process of a node is gone: its connections close.
  void close_all(std::uint32_t node, std::uint64_t instance);
  [[nodiscard]] std::shared_ptr<SimControl> open_control(std::uint32_t job, SimDaemon& daemon);
  [[nodiscard]] Duration delay() { return any(Duration{5'000}, delay_max_); }
  /// Runs `act` at a process, when it runs, unless it ends before.
  void at_daemon(std::uint32_t node, std::uint64_t instance, TimePoint time,
                 std::function<void(SimDaemon&)> act);

  /// A job moves bytes, or waits for memory: a fault that waits for such a moment happens.
  void bad_moment();

  /// When something was last done to the node, or to the job's way there.
  void disturb(std::uint32_t node) { disturbed_[node] = now(); }
  [[nodiscard]] bool disturbed(std::uint32_t job, std::uint32_t node, Duration within) const;
  [[nodiscard]] std::uint32_t disturbed_nodes(std::uint32_t job, Duration within) const;

 private:
  void add_machine(std::uint32_t node);
  void run_at(SimDaemon& daemon, const std::function<void(SimDaemon&)>& act);
  void arrive(const std::shared_ptr<SimControl>& control,
              const std::function<void(SimDaemon&)>& act);
  // Faults: sim_faults.cpp.
  void next_fault();
  void one_fault();
  void at_a_bad_moment(std::function<void()> fault);
  void kill(std::uint32_t node);
  void begin_again(std::uint32_t node);
  void stop(std::uint32_t node, Duration pause);
  void go_on(std::uint32_t node);
  void fault_of_job();
  void fault_of_network();
  enum class Breaks : std::uint8_t { kNo, kYes };
  void cut_for_a_while(std::uint32_t node, Breaks breaks);
  void cut_for(std::uint32_t node, Duration pause, Breaks breaks);
  void break_connections(std::uint32_t job, std::uint32_t node);
  void beside(std::uint32_t node);
  void fault_of_book();
  void drain(std::uint32_t node);
  void heal();
  void check_end();
  [[nodiscard]] std::uint32_t any_node();

  const SimOptions options_;
  SimClock clock_;
  Fibers fibers_{clock_};
  Prng random_;
  SimFabric fabric_;
  SimBook book_;
  Duration delay_max_;
  std::vector<std::unique_ptr<SimMachine>> machines_;
  std::vector<std::unique_ptr<PoolJob>> jobs_;
  std::vector<std::shared_ptr<SimControl>> controls_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> cut_;  ///< job, node
  std::map<std::uint32_t, TimePoint> disturbed_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, TimePoint> way_disturbed_;
  std::set<std::uint32_t> victims_;  ///< nodes that faults of this run are about; empty: any
  std::function<void()> ambush_;     ///< happens once a job moves bytes
  bool closing_ = false;
  bool healed_ = false;
  std::string wrong_;
  std::uint64_t trace_ = 14695981039346656037U;
  SimCounts counts_;
};

}  // namespace ho::test
