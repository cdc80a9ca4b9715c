#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/net/address.hpp"
#include "common/transport/striping/rail.hpp"
#include "common/transport/transport.hpp"

// The data protocol of the `tcp` driver. An initiator says hello once on each connection, then
// sends requests; the target answers each, in their order. Integers are little-endian. A put's
// bytes follow its request, a get's bytes follow its answer; nothing else is on the wire.
namespace ho::transport::tcp {

static_assert(std::endian::native == std::endian::little, "frames are sent as they lie in memory");

inline constexpr std::uint32_t kMagic = 0x31544f48;  ///< "HOT1"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kTokenBytes = 16;
/// Bytes of one operation.
inline constexpr std::uint64_t kLengthMax = std::uint64_t{1} << 30U;

enum class OpCode : std::uint8_t { kGet = 1, kPut = 2 };

enum class Status : std::uint32_t {
  kOk = 0,
  kDenied = 1,  ///< no such segment in this session (any more), or no right to write it
};

/// The first frame of a connection. It is answered with an Answer of length 0, or not at all.
struct Hello {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint8_t rail = 0;  ///< which of the target's addresses this is, from 0
  LaneKind lane = LaneKind::kSmall;
  std::uint32_t generation = 0;  ///< the rail's; one that was fenced is not taken any more
  std::uint32_t zero = 0;
  std::uint64_t session = 0;
  std::array<std::uint8_t, kTokenBytes> token{};
};

struct Request {
  std::uint32_t magic = kMagic;
  OpCode op = OpCode::kGet;
  std::array<std::uint8_t, 3> zero{};
  std::uint64_t id = 0;  ///< the answer repeats it
  std::uint32_t segment = 0;
  std::uint32_t generation = 0;  ///< which of those that have had that number
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  ///< where it is a put, its bytes follow
};

struct Answer {
  std::uint32_t magic = kMagic;
  Status status = Status::kOk;
  std::uint64_t id = 0;
  std::uint64_t length = 0;  ///< bytes that follow: a get's, where it is kOk; else 0
};

inline constexpr std::size_t kFrameBytes = 40;  ///< both a Hello and a Request
static_assert(sizeof(Hello) == kFrameBytes && sizeof(Request) == kFrameBytes);
static_assert(sizeof(Answer) == 24);

/// A segment as requests name it, in one session.
struct SegmentKey {
  std::uint32_t segment = 0;
  std::uint32_t generation = 0;
  std::uint64_t length_bytes = 0;
  Rights rights = Rights::kRead;
};

/// As RegionGrant carries it: "tcp" and four hexadecimal numbers, separated by '/'.
[[nodiscard]] std::string encode_key(const SegmentKey& key);
/// @return kInvalidArgument where the text is not such a key.
[[nodiscard]] Result<SegmentKey> decode_key(const std::string& text);

/// Where one rail of a target is reached.
struct RailAddress {
  net::SocketAddress where;
  std::string name;  ///< the name in the target's certificate; empty: without TLS
};

/// A target's address as text: "10.0.0.1:7711" or, with TLS, "10.0.0.1:7711/node3", one a rail,
/// separated by ','. @param name  of its certificate, without ',' and '/'; empty: without TLS.
[[nodiscard]] std::string encode_rails(std::span<const net::SocketAddress> rails,
                                       const std::string& name);
/// @return kInvalidArgument where the text is none of 1 .. kRailsMax different addresses.
[[nodiscard]] Result<std::vector<std::string>> decode_rails(const std::string& text);
/// One of decode_rails(). @return kInvalidArgument.
[[nodiscard]] Result<RailAddress> decode_rail(const std::string& text);

}  // namespace ho::transport::tcp
