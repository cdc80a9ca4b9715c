#pragma once

#include <cstdint>
#include <string>

#include "common/base/check.hpp"
#include "common/base/result.hpp"
#include "common/base/strong.hpp"

namespace ho {

/// A node of the supernode: 0 .. 4095. The daemon's configuration sets it; it is unique in a pool.
using NodeId = Strong<struct NodeIdTag, std::uint16_t>;
/// A granted segment of one daemon. The daemon never reuses an id while it lives.
using SegmentId = Strong<struct SegmentIdTag, std::uint64_t>;
/// A session of one daemon. The daemon never reuses an id while it lives.
using SessionId = Strong<struct SessionIdTag, std::uint64_t>;

/// A tier of memory. A GlobalAddress of another node is never on kDevice.
enum class Tier : std::uint8_t { kDevice = 0, kDdr = 1, kFlash = 2 };

inline constexpr std::uint16_t kNodeIdMax = (1U << 12U) - 1;
inline constexpr std::uint64_t kTierOffsetMax = (std::uint64_t{1} << 50U) - 1;

/// 12 bits node | 2 bits tier | 50 bits offset. An address names bytes and gives no access to them.
/// Only this class converts between the number and its parts.
class GlobalAddress {
 public:
  struct Parts {
    NodeId node;
    Tier tier = Tier::kDevice;
    std::uint64_t offset_bytes = 0;
  };

  /// @return kInvalidArgument if a part exceeds its bits.
  [[nodiscard]] static Result<GlobalAddress> from_parts(const Parts& parts) {
    if (parts.node.value() > kNodeIdMax || parts.offset_bytes > kTierOffsetMax) {
      return Error(Errc::kInvalidArgument, "a part of the address is out of range");
    }
    return GlobalAddress((std::uint64_t{parts.node.value()} << 52U) |
                         (static_cast<std::uint64_t>(parts.tier) << 50U) | parts.offset_bytes);
  }
  /// @return kInvalidArgument if the tier bits name no tier.
  [[nodiscard]] static Result<GlobalAddress> from_bits(std::uint64_t bits) {
    if (((bits >> 50U) & 3U) > static_cast<std::uint64_t>(Tier::kFlash)) {
      return Error(Errc::kInvalidArgument, "the address names no tier");
    }
    return GlobalAddress(bits);
  }

  [[nodiscard]] std::uint64_t bits() const { return bits_; }
  [[nodiscard]] Parts parts() const {
    return Parts{NodeId(static_cast<std::uint16_t>(bits_ >> 52U)),
                 static_cast<Tier>((bits_ >> 50U) & 3U), bits_ & kTierOffsetMax};
  }
  /// For people and JSON: "3:ddr:0x10000000", which is node, tier and offset.
  [[nodiscard]] std::string text() const;
  auto operator<=>(const GlobalAddress&) const = default;

 private:
  explicit GlobalAddress(std::uint64_t bits) : bits_(bits) {
    HO_CHECK(((bits >> 50U) & 3U) <= static_cast<std::uint64_t>(Tier::kFlash));
  }
  std::uint64_t bits_;
};

}  // namespace ho
