#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// Even numbers: toward the device; odd: away from it. Local and remote of one direction share a
/// port.
inline constexpr unsigned kChannelCount = 6;
inline constexpr unsigned kPortChannelCount = 4;  ///< the first ones, which connect to the device
inline constexpr std::array<std::string_view, kChannelCount> kChannelNames = {
    "local_ddr.read",   "local_ddr.write", "remote_ddr.read",
    "remote_ddr.write", "flash.read",      "flash.write"};

/// The link of each channel with the latency of the port included, and the port per direction.
struct ChannelLinks {
  std::array<std::optional<Link>, kChannelCount> links;
  std::array<std::optional<Link>, 2> ports;

  /// @return kInvalidArgument for a link without bandwidth.
  [[nodiscard]] static Result<ChannelLinks> create(const Hardware& hardware);
  /// The channel of a tier that a transfer uses; `kind` is not Detach.
  /// @return kInvalidArgument if the hardware has no such tier.
  [[nodiscard]] Result<unsigned> channel(schedule::HomeTier tier, schedule::CacheOpKind kind) const;
};

}  // namespace ho::analyzer
