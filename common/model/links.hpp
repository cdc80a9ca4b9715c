#pragma once

#include <cstdint>
#include <optional>

#include "common/model/hardware.hpp"

namespace ho {

/// Duration of one transfer that has its link to itself: latency + bytes / rate, rounded up, at
/// most 2^53 ns. The rate must be above 0.
[[nodiscard]] std::int64_t transfer_ns(const Link& link, std::uint64_t bytes);

/// The link that a single transfer sees in one direction: the lower bandwidth and the larger
/// latency of the tier's link and the device port.
[[nodiscard]] Link effective_link(const Link& link, const std::optional<Link>& port);

/// Time to move `bytes` to the device and back over every link of the machine, one after another.
/// This bounds the cost of one use of a storage. It has no upper limit, unlike transfer_ns().
[[nodiscard]] double round_trip_ns(const Hardware& hardware, std::uint64_t bytes);

/// Limit for the sum of round_trip_ns() over a step. Simulations run up to eight steps, and their
/// times must stay far below 2^63.
inline constexpr double kRoundTripsNsMax = 288230376151711744.0;  // 2^58

}  // namespace ho
