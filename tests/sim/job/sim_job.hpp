#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/pool/flash_homes.hpp"
#include "client/replay/replay.hpp"
#include "client/transfer/mover.hpp"
#include "common/schedule/schedule.hpp"
#include "tests/sim/job/sim_stager.hpp"
#include "tests/support/sim_transport.hpp"

namespace ho::test {

/// The fault of a run.
enum class SimFault : std::uint8_t { kNone, kKillPeer, kStopPeer, kLoss, kBadFlash };

/// How a simulated job ended.
struct SimOutcome {
  bool finished = false;
  std::optional<client::ReplayFailure> failure;
  Duration failed_after{};  ///< time from the fault to the failure
  bool fault_happened = false;
  std::string wrong;  ///< description of the first wrong byte; empty: none
  std::uint64_t stall_turns = 0;
  std::uint64_t staged_bytes = 0;
};

/// A whole job in one thread: the client's executor, mover and replay over the simulated transport,
/// a pool of two nodes with flash, and kernels whose outputs depend on every byte that they read. A
/// model computes the same in plain memory. Every operand is compared before its op runs, and every
/// home slot at the end. Each reported release of a waiting op is checked, too.
class SimJob {
 public:
  SimJob(const schedule::Schedule& schedule, std::uint64_t seed, SimFault fault);
  ~SimJob();
  [[nodiscard]] SimOutcome run(std::uint64_t steps);

 private:
  struct Node {
    std::string address;
    transport::PeerId peer;
    std::vector<std::vector<std::byte>> segments;
  };
  [[nodiscard]] client::ArenaMap spread(std::uint64_t bytes,
                                        std::span<const client::StagingPart> parts);
  void open_flash(const client::FlashPlan& plan);
  [[nodiscard]] TimePoint next_event(TimePoint otherwise) const;
  [[nodiscard]] std::uint64_t ticks() const;
  void write_home(std::uint32_t storage, const std::vector<std::byte>& value);
  [[nodiscard]] std::vector<std::byte> read_home(std::uint32_t storage);
  [[nodiscard]] std::byte* home_byte(std::uint32_t storage, std::uint64_t at);
  [[nodiscard]] std::vector<std::byte> random_value(std::uint64_t bytes);
  [[nodiscard]] bool drive_until(std::uint64_t ready_above);
  void check_release(std::uint64_t position);
  void turn();
  void inject();
  void run_op(std::uint32_t position, std::uint64_t step);
  void drain();

  schedule::Schedule schedule_;  ///< with its staging slots at the places of the flash homes
  Prng random_;
  SimFault fault_;
  SimClock clock_;
  SimFabric fabric_;
  SimLink link_;
  SimTransport transport_;
  std::vector<Node> nodes_;
  SimStager stager_;
  std::vector<std::optional<client::FlashPlace>> places_;  ///< per storage
  std::vector<std::byte> arena_;
  std::vector<std::vector<std::byte>> model_;
  client::LocalHandles handles_;
  client::ArenaMap local_;
  client::ArenaMap remote_;
  std::optional<client::Mover> mover_;
  std::optional<client::Replay> replay_;
  TimePoint fault_at_ = TimePoint::max();
  std::uint32_t fault_node_ = 0;
  TimePoint close_at_ = TimePoint::max();
  SimOutcome outcome_;
};

}  // namespace ho::test
