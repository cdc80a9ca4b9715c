#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/pool/placement/flash_homes.hpp"
#include "client/replay/replay.hpp"
#include "client/transfer/mover.hpp"
#include "common/schedule/schedule.hpp"
#include "tests/sim/job/sim_stager.hpp"
#include "tests/support/host_memory.hpp"
#include "tests/support/sim_transport.hpp"

namespace ho::test {

/// The fault of a run, or kNone.
/// The last four are for plans in which every storage has two homes: a node is killed, or stopped,
/// for good; daemons are restarted again and again, with their memory; one node or the
/// other stands still for a while.
enum class SimFault : std::uint8_t {
  kNone,
  kKillPeer,
  kStopPeer,
  kLoss,
  kBadFlash,
  kLoseNode,
  kStopNode,
  kRestartNodes,
  kPauseNodes
};
/// Where device bytes lie: where plans have placed them, or where the job puts them.
enum class SimDevice : std::uint8_t { kArena, kHosted };

/// The result of a simulated job.
struct SimOutcome {
  bool finished = false;
  std::optional<client::ReplayFailure> failure;
  Duration failed_after{};  ///< from the fault to the failure
  bool fault_happened = false;
  std::string wrong;  ///< the first wrong byte, in words; empty if none
  std::uint64_t stall_turns = 0;
  std::uint64_t staged_bytes = 0;
  std::uint64_t runs = 0;          ///< times that a plan began to run
  std::uint64_t left_steps = 0;    ///< ended before their last position
  std::uint64_t restarts = 0;      ///< of daemons
  std::uint64_t late = 0;          ///< transfers that ended because their node stood still
  Duration waited_max{};           ///< of one position
  bool both_paused = false;        ///< not only one of the nodes stood still
  std::uint64_t stale_values = 0;  ///< that one of two homes lacked at the end of a run
  std::uint64_t kept_values = 0;   ///< on the device alone from one plan's run to another's
};

/// A complete job in one thread: the client's executor, mover and replay over the simulated
/// transport, a pool of two nodes with flash, and kernels whose outputs depend on every byte they
/// read. Plans share persistent storages by name and take turns, as client::Runtime has it. A model
/// computes the same values in plain memory. The job compares every operand before its op runs,
/// every place that a replay names for a value, and every home at the end. A cache op that is
/// reported to have released a waiting op must have ended at that moment.
class SimJob {
 public:
  SimJob(const std::vector<schedule::Schedule>& plans, std::uint64_t seed, SimFault fault,
         SimDevice device = SimDevice::kArena);
  ~SimJob();

  /// Some steps of the first plan, and its epilogue.
  [[nodiscard]] SimOutcome run(std::uint64_t steps);
  /// Steps of all plans in any order, with all that may happen between them: values that are read
  /// and written, epilogues, steps that are left.
  [[nodiscard]] SimOutcome run_mixed(std::uint64_t acts);

 private:
  struct Node {
    std::string address;
    transport::PeerId peer;
    std::vector<std::vector<std::byte>> segments;
    std::shared_ptr<client::NodeFault> fault;
    [[nodiscard]] bool lost() const { return fault->reason() != client::FaultReason::kNone; }
  };
  /// A persistent storage.
  struct Held {
    client::StorageHome home;
    std::vector<std::byte> model;
    client::ValuePlace place;      ///< while no plan that knows it runs
    std::byte* address = nullptr;  ///< likewise, where the job places it
  };
  struct Plan {
    schedule::Schedule schedule;
    client::ArenaMap map;  ///< homes and staging slots of a step
    client::HomeArea area;
    std::vector<client::StorageHome> homes;
    std::vector<std::vector<std::byte>> model;  ///< by storage; values of a step
    std::vector<std::uint32_t> last;            ///< position of the last access, by storage
    std::optional<client::Replay> replay;
    std::uint64_t steps = 0;      ///< begun
    std::uint64_t run_steps = 0;  ///< begun in this run
  };

  /// Until others hear of a lost node; the longest that the clock advances at once.
  static constexpr Duration kControlNotice = std::chrono::milliseconds(1);

  void add(const schedule::Schedule& schedule);
  void place_flash(Plan& plan, client::FlashPlan& flash, std::vector<bool>& kept);
  [[nodiscard]] client::ArenaMap spread(std::uint64_t bytes,
                                        std::span<const client::StagingPart> parts);
  enum class Homes : std::uint8_t { kOne, kTwo };
  [[nodiscard]] client::StorageHome own_home(std::uint64_t bytes, std::size_t copies, Homes homes);
  [[nodiscard]] bool doubled_faults() const { return fault_ >= SimFault::kLoseNode; }
  void lose(std::uint32_t node);
  void restart_nodes();
  void pause_nodes();

  // One act of the job each. They return early where the job has failed.
  void run_steps(Plan& plan, std::uint64_t steps);
  void leave_step(Plan& plan);
  void begin_step(Plan& plan);
  bool run_position(Plan& plan, std::uint32_t position);
  void begin_run(Plan& plan);
  void end_run(const Plan* next);
  void stop_run();
  void take_places();
  void look_at_any();
  void write_any();
  void check_homes();
  [[nodiscard]] SimOutcome finish();

  void run_op(Plan& plan, std::uint32_t position);
  [[nodiscard]] bool drive_until_ready(Plan& plan, std::uint64_t position);
  void check_release(Plan& plan, std::uint64_t position);
  void serve();
  void turn();
  void wait_a_little();
  void inject();
  void drain();
  [[nodiscard]] bool over() const { return failure_.has_value() || !outcome_.wrong.empty(); }
  void wrong(const std::string& what);

  [[nodiscard]] std::vector<std::byte>& model(Plan& plan, std::uint32_t storage);
  [[nodiscard]] std::byte* device_bytes(Plan& plan, std::uint32_t storage, std::uint64_t offset);
  void check_place(Plan& plan, std::uint32_t storage, const client::ValuePlace& place);
  [[nodiscard]] std::byte* pool_byte(const client::ArenaMap& map, std::uint64_t offset);
  [[nodiscard]] std::byte* home_byte(const client::StorageHome& home, std::uint64_t parity,
                                     std::uint64_t at, std::size_t which);
  void write_home(const client::StorageHome& home, std::uint64_t parity,
                  const std::vector<std::byte>& value);
  /// Whether each home that is to have the value has it, and one has.
  [[nodiscard]] bool at_home(const client::StorageHome& home, std::uint64_t parity,
                             std::uint8_t stale_homes, const std::vector<std::byte>& value);
  [[nodiscard]] std::vector<std::byte> random_value(std::uint64_t bytes);
  /// Fills `into` with a stream of bytes that depends on every bit of `seed`.
  static void fill(std::span<std::byte> into, std::uint64_t seed);
  [[nodiscard]] static bool is_input(const Storage& storage);
  [[nodiscard]] TimePoint next_event(TimePoint otherwise) const;
  [[nodiscard]] std::uint64_t ticks() const;

  Prng random_;
  SimFault fault_;
  SimDevice device_;
  SimClock clock_;
  SimFabric fabric_;
  SimLink link_;
  SimTransport transport_;
  std::vector<Node> nodes_;
  SimStager stager_;
  std::vector<std::byte> arena_;
  HostMemory host_;
  client::LocalHandles handles_;
  std::optional<client::Mover> mover_;
  std::deque<client::ArenaMap> own_maps_;
  std::deque<client::HomeArea> own_areas_;
  std::map<std::string, Held> held_;
  std::deque<Plan> plans_;
  Plan* running_ = nullptr;
  std::optional<client::ReplayFailure> failure_;
  TimePoint fault_at_ = TimePoint::max();
  std::uint32_t fault_node_ = 0;
  TimePoint close_at_ = TimePoint::max();
  bool restarting_ = false;  ///< the daemon of fault_node_ is being restarted
  bool paused_ = false;      ///< fault_node_ stands still
  std::uint64_t pauses_ = 0;
  SimOutcome outcome_;
};

}  // namespace ho::test
