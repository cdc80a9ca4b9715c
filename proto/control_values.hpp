#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/numa.hpp"
#include "common/base/unique_fd.hpp"
#include "common/base/units.hpp"
#include "common/model/address.hpp"
#include "common/transport/transport.hpp"

namespace ho {

inline constexpr std::uint32_t kControlProtocolVersion = 1;
inline constexpr std::size_t kSessionTokenBytes = 16;
/// A pool's segments: a power of two from kSegmentBytesMin to kSegmentBytesMax.
inline constexpr std::uint64_t kSegmentBytesMin = 2 * kMiB;
inline constexpr std::uint64_t kSegmentBytesMax = kGiB;
/// Segments in one GrantRequest at most: a frame carries 64 descriptors, and whatever a daemon does
/// for one grant keeps its data thread from others for a millisecond or two.
[[nodiscard]] constexpr std::uint64_t segments_per_grant_max(std::string_view driver) {
  return driver == "local" ? 64 : 256;
}

/// One driver by which the peer may be reached, as its hello named it.
struct DriverEndpoint {
  std::string driver;   ///< "local", "ofi", "ucx"
  std::string address;  ///< transport::PeerAddress::address
};

/// A driver that a daemon does not offer to anybody, and why.
struct DriverOff {
  std::string driver;
  std::string reason;
};

/// What a daemon says of itself first.
struct HelloReply {
  NodeId node;
  std::string node_name;
  std::string boot_id;                ///< equal on both sides: the same running kernel
  std::uint64_t daemon_instance = 0;  ///< random at each start
  std::uint64_t segment_bytes = 0;
  std::vector<DriverEndpoint> drivers;  ///< what this connection may use
  std::vector<DriverOff> drivers_off = {};
};

/// A session on one daemon. The token is a secret: who has it owns the session.
struct Session {
  SessionId id;
  std::string token;  ///< kSessionTokenBytes random bytes
  std::chrono::milliseconds lease{0};
  std::string address;  ///< of its own, at the driver it was opened for; empty: the driver's holds
};

struct GrantSpec {
  std::uint64_t bytes = 0;  ///< rounded up to whole segments by the daemon
  std::string driver;       ///< "local" passes one descriptor a segment
  transport::Rights rights = transport::Rights::kReadWrite;
  std::optional<NumaNode> near = {};  ///< of the daemon's machine: where it is to lie, if it can
};

/// One granted segment. `key` and `fd` are what transport::RegionGrant wants.
struct GrantedSegment {
  SegmentId id;
  std::uint64_t address_bits = 0;  ///< GlobalAddress of its first byte; checked on receipt
  std::uint64_t length_bytes = 0;
  std::string key;
  UniqueFd fd;  ///< valid with driver "local" only
};

struct NodeInfo {
  NodeId node;
  std::string name;
  std::vector<std::string> control_addresses;  ///< "unix:/run/...", "tcp:HOST:PORT"
};

struct FlashPathStatus {
  std::string path;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t written_today_bytes = 0;
  std::uint64_t written_total_bytes = 0;
  std::uint64_t write_bytes_per_day_max = 0;  ///< 0: no budget
  bool read_only = false;                     ///< after an I/O error
};

/// How often something was refused since the daemon's start.
struct Refusal {
  std::string cause;
  std::uint64_t count = 0;
};

/// What of a node's DDR is meant to lie on one of its NUMA nodes.
struct NumaStatus {
  NumaNode node;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t granted_bytes = 0;
};

struct NodeStatus {
  NodeId node;
  std::string node_name;
  std::string version;
  std::uint64_t uptime_ms = 0;
  std::uint64_t ddr_capacity_bytes = 0;
  std::uint64_t ddr_granted_bytes = 0;  ///< granted, or given back and not yet wiped
  std::uint64_t segment_bytes = 0;
  std::string page_kind;
  std::uint32_t sessions = 0;
  std::vector<std::string> drivers;
  bool draining = false;
  std::vector<FlashPathStatus> flash;
  std::string flash_off;  ///< why configured flash is not there
  std::vector<Refusal> refusals;
  std::vector<NumaStatus> numa;  ///< none: not divided
};

struct SessionInfo {
  SessionId id;
  std::string name;
  std::uint32_t pid = 0;
  std::string peer;
  std::uint64_t granted_bytes = 0;
  std::uint64_t lease_left_ms = 0;
  std::uint64_t age_ms = 0;
};

struct SegmentInfo {
  SegmentId id;
  std::uint64_t address_bits = 0;
  std::uint64_t length_bytes = 0;
  SessionId session;
  std::string driver;
  std::string page_kind;
  std::optional<NumaNode> numa = {};  ///< where most of it lies
};

/// What a stage_out's answer promises, and how long an extent lives.
enum class FlashPolicy : std::uint8_t {
  kScratch = 1,  ///< the device took it; the extent ends with its session
  kDurable = 2,  ///< it outlives a crash; the extent stays until it is freed
};

/// An extent of one node's flash tier. `access` is a secret: with it another session can open a
/// durable extent.
struct FlashExtent {
  std::uint64_t id = 0;
  std::uint64_t access = 0;
  std::uint64_t length_bytes = 0;
};

/// What takes space on one node's flash, as whoever runs the node sees it.
struct FlashExtentInfo {
  std::uint64_t id = 0;
  std::uint64_t length_bytes = 0;
  FlashPolicy policy = FlashPolicy::kScratch;
  SessionId session{};  ///< one that has it open; 0: none
};

enum class StageDirection : std::uint8_t { kIn = 1, kOut = 2 };

/// One chunk moved between an extent and a segment of the same session and node.
struct StageSpec {
  StageDirection direction = StageDirection::kIn;
  std::uint64_t extent = 0;
  std::uint64_t extent_offset_bytes = 0;
  SegmentId segment;
  std::uint64_t segment_offset_bytes = 0;
  std::uint64_t length_bytes = 0;  ///< 1 .. kStageBytesMax
};
/// Of one request. More would keep who waits for its first bytes waiting.
inline constexpr std::uint64_t kStageBytesMax = 8 * kMiB;
/// Of one session at a time; the next are kBusy. Below what a connection may have, so that leases
/// are renewed meanwhile.
inline constexpr std::uint32_t kStagesPerSessionMax = 48;

}  // namespace ho
