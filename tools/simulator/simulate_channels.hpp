#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/simulator/fair_shares.hpp"
#include "tools/simulator/simulate.hpp"

// For simulators only: this folder and tools/baselines. explain_plan.cpp uses the checks.
namespace ho::analyzer::detail {

inline constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
/// Number of steps after which a period counts as unsteady.
inline constexpr std::uint32_t kStepsMax = 8;
/// Limit for the sum of one step's durations, so that times of kStepsMax steps cannot overflow.
inline constexpr std::uint64_t kComputeNsMax = 1ULL << 59U;

/// Even numbers: toward the device; odd: away from it. Local and remote of one direction share a
/// port.
inline constexpr unsigned kChannelCount = 6;
inline constexpr unsigned kPortChannelCount = 4;  ///< the first ones, which connect to the device
inline constexpr std::array<std::string_view, kChannelCount> kChannelNames = {
    "local_ddr.read",   "local_ddr.write", "remote_ddr.read",
    "remote_ddr.write", "flash.read",      "flash.write"};

/// @return kInvalidArgument if the hardware has no such tier.
[[nodiscard]] Result<unsigned> channel_of(const Hardware& hardware, schedule::HomeTier tier,
                                          bool toward_device);

/// The link of each channel with the latency of the port included, and the port per direction.
struct ChannelLinks {
  std::array<std::optional<Link>, kChannelCount> links;
  std::array<std::optional<Link>, 2> ports;

  /// @return kInvalidArgument for a link without bandwidth.
  [[nodiscard]] static Result<ChannelLinks> create(const Hardware& hardware);
};

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

/// The channel of each cache op of a list; the entry of a Detach is meaningless.
/// @return kInvalidArgument if the hardware lacks a tier, or a storage that moves has no home.
[[nodiscard]] Result<std::vector<unsigned>> channels_of(const schedule::Schedule& schedule,
                                                        const Hardware& hardware,
                                                        const std::vector<schedule::CacheOp>& list);

/// The sum to which a transfer's bytes belong.
[[nodiscard]] std::uint64_t& bytes_of(schedule::CacheOpKind kind, Simulation& out);

/// The position of each storage's last access in the step; kNever if it has none.
[[nodiscard]] std::vector<std::uint64_t> last_access(const schedule::Schedule& schedule);

/// Device and home peaks in the form of the outputs.
[[nodiscard]] std::vector<schedule::TierPeak> tier_peaks(const schedule::Schedule& schedule,
                                                         std::uint64_t device_peak_bytes);

}  // namespace ho::analyzer::detail
