#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/simulator/channel_links.hpp"
#include "tools/simulator/fair_shares.hpp"
#include "tools/simulator/simulate.hpp"

// For simulators only: this folder and tools/baselines. explain_plan.cpp uses the checks.
namespace ho::analyzer::detail {

inline constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
/// Number of steps after which a period counts as unsteady.
inline constexpr std::uint32_t kStepsMax = 8;
/// Limit for the sum of one step's durations, so that times of kStepsMax steps cannot overflow.
inline constexpr std::uint64_t kComputeNsMax = 1ULL << 59U;

/// The channels of one rank, and which of the shared links' directions each of them crosses.
struct RankChannels {
  ChannelLinks links;
  std::array<std::vector<std::uint32_t>, kChannelCount> crosses;
};

/// The channels of all ranks in simulated time; each serves one transfer at a time. A rank's device
/// ports and the links that ranks share limit sums: what moves over them gets max-min fair shares.
/// Times passed in must not decrease.
class Channels {
 public:
  /// @param shared_bytes_per_s  per direction of a shared link, all above 0
  Channels(const std::vector<RankChannels>& ranks,
           const std::vector<std::uint64_t>& shared_bytes_per_s);

  [[nodiscard]] bool idle(std::size_t rank, unsigned channel) const {
    return !servers_[rank * kChannelCount + channel].busy;
  }
  /// The channel must be idle and exist.
  void start(std::size_t rank, unsigned channel, std::uint64_t bytes, std::uint64_t now_ns);
  /// The time of the next event; kNever if all are idle.
  [[nodiscard]] std::uint64_t next_ns() const;

  struct Ended {
    std::size_t rank = 0;
    unsigned channel = 0;
  };
  /// Processes one channel's event at `now_ns`. @return the channel whose transfer has ended;
  /// nullopt if the event was only a phase change, or there is no event at this time (see
  /// next_ns()).
  [[nodiscard]] std::optional<Ended> advance(std::uint64_t now_ns);

 private:
  struct Server {
    std::optional<Link> link;
    std::vector<std::uint32_t> limits;  ///< what it shares
    bool busy = false;
    bool moving = false;  ///< past its latency; tracked only with limits
    std::uint64_t event_ns = kNever;
    std::uint64_t updated_ns = 0;
    double left_bytes = 0;
    double rate = 0;  ///< bytes per ns
  };
  void share(std::uint64_t now_ns);

  std::vector<Server> servers_;      ///< kChannelCount per rank
  std::vector<double> capacities_;   ///< per limit, in bytes per ns
  std::vector<Flow> flows_;          ///< scratch
  std::vector<std::size_t> moving_;  ///< scratch: the server of each flow
};

/// Checks the indices of a schedule. The simulator relies on them afterwards.
[[nodiscard]] Result<void> check_indices(const schedule::Schedule& schedule);

/// Checks that the times of all transfers of a step fit, whichever policy makes them. Also reports
/// a link without bandwidth.
[[nodiscard]] Result<void> check_transfers(const schedule::Schedule& schedule,
                                           const Hardware& hardware);

/// A schedule's step, which refers to its lists. Checks all that a replay relies on.
/// @return kInvalidArgument for an index out of range, times that are too long, a tier that the
/// hardware lacks, or a storage that moves and has no home.
[[nodiscard]] Result<TimedStep> timed_step(const schedule::Schedule& schedule,
                                           const Hardware& hardware, const ChannelLinks& links);

/// The sum to which a transfer's bytes belong.
[[nodiscard]] std::uint64_t& bytes_of(schedule::CacheOpKind kind, Simulation& out);

/// The position of each storage's last access in the step; kNever if it has none.
[[nodiscard]] std::vector<std::uint64_t> last_access(const schedule::Schedule& schedule);

/// Device and home peaks in the form of the outputs.
[[nodiscard]] std::vector<schedule::TierPeak> tier_peaks(const schedule::Schedule& schedule,
                                                         std::uint64_t device_peak_bytes);

}  // namespace ho::analyzer::detail
