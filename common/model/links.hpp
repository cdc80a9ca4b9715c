#pragma once

#include <cstdint>
#include <optional>

#include "common/model/hardware.hpp"

namespace ho {

/// Time of one transfer alone on its link: latency + bytes / rate, rounded up, at most 2^53 ns.
/// The rate is above 0.
[[nodiscard]] std::int64_t transfer_ns(const Link& link, std::uint64_t bytes);

/// One direction's link as a lone transfer sees it: the slower of tier link and device port, the
/// larger latency.
[[nodiscard]] Link effective_link(const Link& link, const std::optional<Link>& port);

/// Time to bring bytes to the device and back over every link of the machine, one after another:
/// no use of a storage in a step costs more. Not limited as transfer_ns() is.
[[nodiscard]] double round_trip_ns(const Hardware& hardware, std::uint64_t bytes);

/// The largest sum of round_trip_ns() over a step that is accepted: simulations run up to eight
/// steps, and their times must stay far from 2^63.
inline constexpr double kRoundTripsNsMax = 288230376151711744.0;  // 2^58

}  // namespace ho
