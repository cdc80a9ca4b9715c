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
#include "tools/simulator/simulate.hpp"

// For simulators only: this folder and tools/baselines; explain_plan.cpp takes the checks.
namespace ho::analyzer::detail {

inline constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
/// Steps after which an unsteady period is given up on.
inline constexpr std::uint32_t kStepsMax = 8;
/// Sum of one step's durations beyond which times could overflow in kStepsMax steps.
inline constexpr std::uint64_t kComputeNsMax = 1ULL << 59U;

/// Even: toward the device; odd: away from it. Local and remote of one direction share a port.
inline constexpr unsigned kChannelCount = 6;
inline constexpr unsigned kPortChannelCount = 4;  ///< the first ones, which reach the device
inline constexpr std::array<std::string_view, kChannelCount> kChannelNames = {
    "local_ddr.read",   "local_ddr.write", "remote_ddr.read",
    "remote_ddr.write", "flash.read",      "flash.write"};

/// @return kInvalidArgument where the hardware has no such tier.
[[nodiscard]] Result<unsigned> channel_of(const Hardware& hardware, schedule::HomeTier tier,
                                          bool toward_device);

/// The link behind each channel with the port's latency taken in, and the port per direction.
struct ChannelLinks {
  std::array<std::optional<Link>, kChannelCount> links;
  std::array<std::optional<Link>, 2> ports;

  /// @return kInvalidArgument for a link without bandwidth.
  [[nodiscard]] static Result<ChannelLinks> create(const Hardware& hardware);
};

/// The channels as servers of one transfer each, in simulated time. Times passed in never fall.
class Channels {
 public:
  explicit Channels(const ChannelLinks& links) : links_(links) {}

  [[nodiscard]] bool idle(unsigned channel) const { return !servers_[channel].busy; }
  /// The channel is idle and exists.
  void start(unsigned channel, std::uint64_t bytes, std::uint64_t now_ns);
  /// When something happens next; kNever when all are idle.
  [[nodiscard]] std::uint64_t next_ns() const;
  /// Moves one channel's event at `now_ns` along. @return the channel whose transfer has ended, or
  /// nothing: then it was a phase change, or there is no event at this time (see next_ns()).
  [[nodiscard]] std::optional<unsigned> advance(std::uint64_t now_ns);

 private:
  struct Server {
    bool busy = false;
    bool moving = false;  ///< past its latency; only tracked where there is a port
    std::uint64_t event_ns = kNever;
    std::uint64_t updated_ns = 0;
    double left_bytes = 0;
    double rate = 0;  ///< bytes per ns
  };
  [[nodiscard]] bool has_port(unsigned channel) const {
    return channel < kPortChannelCount && links_.ports[channel % 2].has_value();
  }
  void share_port(unsigned direction, std::uint64_t now_ns);

  ChannelLinks links_;
  std::array<Server, kChannelCount> servers_;
};

/// What is wrong with a schedule's indices, or nothing. The simulator trusts them after this.
[[nodiscard]] Result<void> check_indices(const schedule::Schedule& schedule);

/// That the times of all transfers of a step fit, whichever policy makes them. Indices and links
/// are checked, or this answers with the link that has no bandwidth.
[[nodiscard]] Result<void> check_transfers(const schedule::Schedule& schedule,
                                           const Hardware& hardware);

/// The channel of each cache op of a list. A Detach has none; its entry means nothing.
/// @return kInvalidArgument where the hardware lacks a tier, or a storage that is moved has no
/// home.
[[nodiscard]] Result<std::vector<unsigned>> channels_of(const schedule::Schedule& schedule,
                                                        const Hardware& hardware,
                                                        const std::vector<schedule::CacheOp>& list);

/// The sum that a transfer's bytes belong to.
[[nodiscard]] std::uint64_t& bytes_of(schedule::CacheOpKind kind, Simulation& out);

/// The position of each storage's last access in the step; kNever where it has none.
[[nodiscard]] std::vector<std::uint64_t> last_access(const schedule::Schedule& schedule);

/// Device and home peaks as the outputs list them.
[[nodiscard]] std::vector<schedule::TierPeak> tier_peaks(const schedule::Schedule& schedule,
                                                         std::uint64_t device_peak_bytes);

/// When each transfer of the epilogue runs, in simulate_epilogue.cpp: on idle channels from
/// `from_ns` on, each channel in list order. All zero where its dependencies never let it start.
/// @param channel_of  per epilogue op.
[[nodiscard]] std::vector<schedule::MeasuredStep::Span> replay_epilogue(
    const schedule::Schedule& schedule, const ChannelLinks& links,
    const std::vector<unsigned>& channel_of, std::uint64_t from_ns);

}  // namespace ho::analyzer::detail
