#pragma once

#include <cstdint>

#include "common/base/result.hpp"
#include "common/base/strong.hpp"

namespace ho {

/// A node of the supernode: 0 .. 4095, given in the daemon's config, unique in a pool.
using NodeId = Strong<struct NodeIdTag, std::uint16_t>;
/// A granted segment of one daemon. Never reused while that daemon lives.
using SegmentId = Strong<struct SegmentIdTag, std::uint64_t>;
/// A session of one daemon. Never reused while that daemon lives.
using SessionId = Strong<struct SessionIdTag, std::uint64_t>;

/// Where bytes can rest. kDevice never appears in a GlobalAddress of another node.
enum class Tier : std::uint8_t { kDevice = 0, kDdr = 1, kFlash = 2 };

inline constexpr std::uint16_t kNodeIdMax = (1U << 12U) - 1;
inline constexpr std::uint64_t kTierOffsetMax = (std::uint64_t{1} << 50U) - 1;

/// 12 bits node | 2 bits tier | 50 bits offset. It names bytes; it grants nothing.
/// This is the one place that converts between the number and its parts.
class GlobalAddress {
 public:
  struct Parts {
    NodeId node;
    Tier tier = Tier::kDevice;
    std::uint64_t offset_bytes = 0;
  };

  /// @return kInvalidArgument where a part does not fit its bits.
  [[nodiscard]] static Result<GlobalAddress> from_parts(const Parts& parts) {
    if (parts.node.value() > kNodeIdMax || parts.offset_bytes > kTierOffsetMax) {
      return Error(Errc::kInvalidArgument, "address part out of range");
    }
    return GlobalAddress((std::uint64_t{parts.node.value()} << 52U) |
                         (static_cast<std::uint64_t>(parts.tier) << 50U) | parts.offset_bytes);
  }
  /// @return kInvalidArgument where the tier bits name no tier.
  [[nodiscard]] static Result<GlobalAddress> from_bits(std::uint64_t bits) {
    if (((bits >> 50U) & 3U) > static_cast<std::uint64_t>(Tier::kFlash)) {
      return Error(Errc::kInvalidArgument, "address names no tier");
    }
    return GlobalAddress(bits);
  }

  [[nodiscard]] std::uint64_t bits() const { return bits_; }
  [[nodiscard]] Parts parts() const {
    return Parts{NodeId(static_cast<std::uint16_t>(bits_ >> 52U)),
                 static_cast<Tier>((bits_ >> 50U) & 3U), bits_ & kTierOffsetMax};
  }
  auto operator<=>(const GlobalAddress&) const = default;

 private:
  explicit GlobalAddress(std::uint64_t bits) : bits_(bits) {}
  std::uint64_t bits_;
};

}  // namespace ho
