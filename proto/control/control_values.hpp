#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/units.hpp"
#include "common/model/address.hpp"
#include "common/model/stage_direction.hpp"
#include "common/system/numa.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/transport.hpp"

namespace ho {

inline constexpr std::uint32_t kControlProtocolVersion = 1;
inline constexpr std::size_t kSessionTokenBytes = 16;
/// The size of a pool's segments is a power of two between these two.
inline constexpr std::uint64_t kSegmentBytesMin = 2 * kMiB;
inline constexpr std::uint64_t kSegmentBytesMax = kGiB;
/// Most segments in one GrantRequest. A frame carries at most 64 descriptors, and a larger grant
/// would block the daemon's data thread for more than a millisecond or two.
[[nodiscard]] constexpr std::uint64_t segments_per_grant_max(std::string_view driver) {
  return driver == "local" ? 64 : 256;
}

/// One driver that can reach the peer, from its hello.
struct DriverOffer {
  std::string driver;       ///< "local", "ucx", "ofi", "tcp"
  std::uint32_t rails = 1;  ///< number of its addresses
};

/// A driver that a daemon offers to no client, with the reason.
struct DriverOff {
  std::string driver;
  std::string reason;
};

/// The daemon's first message.
struct HelloReply {
  NodeId node;
  std::string node_name;
  std::string boot_id;                ///< equal on both sides: both run on the same kernel
  std::string rack;                   ///< nodes of one rack can be lost together; empty: not known
  std::uint64_t daemon_instance = 0;  ///< a new random number at each start
  std::uint64_t segment_bytes = 0;
  std::vector<DriverOffer> drivers;  ///< those that this connection may use
  std::vector<DriverOff> drivers_off = {};
  /// Names the daemon's memory: the next daemon has the same if it took over what this one held.
  std::uint64_t incarnation = 0;
  /// For so long a client tries to resume its session; 0: that ends with the daemon.
  std::chrono::milliseconds resume{0};
};

/// A session on one daemon. The token is a secret: it gives full control of the session.
struct Session {
  SessionId id;
  std::string token;  ///< kSessionTokenBytes random bytes
  std::chrono::milliseconds lease{0};
  std::string address;  ///< where the session's driver serves it
};

/// A session that a daemon took over from the one that opened it.
struct ResumedSession {
  struct Segment {
    SegmentId id;
    std::uint64_t length_bytes = 0;
    std::string key;  ///< new
  };
  std::chrono::milliseconds lease{0};
  std::string driver;
  std::string address;  ///< where the session's driver serves it now
  std::vector<Segment> segments;
};

/// What a node that is drained still holds.
struct DrainLeft {
  std::uint32_t sessions = 0;
  std::uint64_t granted_bytes = 0;
  std::uint64_t scratch_flash_bytes = 0;  ///< ends with the daemon
};

struct RenewedLease {
  std::chrono::milliseconds lease{0};  ///< from now
  bool drained = false;                ///< the job should leave the node
  /// The daemon ends in so long, with all that the job has there; nullopt: it does not.
  std::optional<std::chrono::milliseconds> ending = {};
};

/// What a daemon left to the next one.
struct LeftOver {
  std::uint32_t sessions = 0;
  std::uint32_t segments = 0;
};

/// What becomes of sessions when a daemon is restarted.
struct RestartStatus {
  std::string off;           ///< why they end with it; empty: they are left to the next one
  std::uint32_t stored = 0;  ///< descriptors in the service manager's store
  std::uint32_t stored_max = 0;
  std::uint32_t unkept_sessions = 0;  ///< for which the store has no room
  std::uint32_t taken_sessions = 0;   ///< taken over at the start
  std::uint32_t taken_segments = 0;
  std::uint32_t lost_sessions = 0;  ///< that could not be
};

struct GrantSpec {
  std::uint64_t bytes = 0;  ///< the daemon rounds up to whole segments
  std::string driver;       ///< "local" passes one descriptor per segment
  transport::Rights rights = transport::Rights::kReadWrite;
  std::optional<NumaNode> near = {};  ///< preferred NUMA node of the daemon's machine
};

/// One granted segment. transport::RegionGrant takes `key` and `fd`.
struct GrantedSegment {
  SegmentId id;
  std::uint64_t length_bytes = 0;
  std::string key;
  UniqueFd fd;  ///< valid for driver "local" only
};

struct NodeInfo {
  NodeId node;
  std::string name;
  std::vector<std::string> control_addresses;  ///< "unix:/run/...", "tcp:HOST:PORT"
};

/// How a daemon knows the other nodes.
struct MembershipStatus {
  std::string kind = "static";  ///< or "etcd"
  std::uint32_t members = 0;    ///< nodes that it lists, with itself
  /// Why etcd cannot be used now, or does not list this node; empty: nothing is wrong.
  std::string trouble;
  std::uint64_t trouble_ms = 0;  ///< since when
};

struct FlashPathStatus {
  std::string path;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t written_today_bytes = 0;
  std::uint64_t written_total_bytes = 0;
  std::uint64_t write_bytes_per_day_max = 0;  ///< 0: no budget
  bool read_only = false;                     ///< true after an I/O error
  std::uint64_t unused_bytes = 0;             ///< that the path has grown by since it was formatted
  bool encrypted = false;
};

/// What one user has of a node, and may have.
struct UserStatus {
  std::string owner;  ///< "uid 1000", "job trainer"
  std::uint64_t ddr_bytes = 0;
  std::uint64_t flash_bytes = 0;
  std::uint64_t blocks_bytes = 0;  ///< segments of the block store
  std::uint32_t sessions = 0;
  std::optional<std::uint64_t> ddr_bytes_max = {};  ///< nullopt: no quota
  std::optional<std::uint64_t> flash_bytes_max = {};
  std::optional<std::uint64_t> blocks_bytes_max = {};
  std::optional<std::uint32_t> sessions_max = {};
  std::uint64_t link_in_bytes = 0;  ///< moved over `tcp` since the daemon's start
  std::uint64_t link_out_bytes = 0;
  std::uint64_t link_waited_ms = 0;  ///< that transfers waited for their turn on these links
  std::uint32_t link_weight = 1;     ///< their part of them, against other users'
  std::optional<std::uint64_t> link_bytes_per_s_min = {};  ///< nullopt: no more than their part
};

/// The number of refusals of one kind since the daemon's start.
struct Refusal {
  std::string cause;
  std::uint64_t count = 0;
};

/// The part of a node's DDR that belongs to one of its NUMA nodes.
struct NumaStatus {
  NumaNode node;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t granted_bytes = 0;
};

/// What one driver served in one direction since the daemon's start, so far as the daemon sees it.
struct TrafficStatus {
  std::string driver;     ///< "tcp", "flash"
  std::string tier;       ///< "ddr", "flash"
  std::string direction;  ///< "get", "put"
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;
  std::uint64_t errors = 0;
};

struct NodeStatus {
  NodeId node;
  std::string node_name;
  std::string rack;  ///< empty: the configuration names none
  std::string version;
  std::uint64_t uptime_ms = 0;
  std::uint64_t ddr_capacity_bytes = 0;
  std::uint64_t ddr_granted_bytes = 0;    ///< granted, or returned and not yet wiped
  std::uint64_t scratch_flash_bytes = 0;  ///< of sessions; ends with the daemon
  std::uint64_t segment_bytes = 0;
  std::string page_kind;
  std::uint32_t sessions = 0;
  std::vector<std::string> drivers;
  bool draining = false;  ///< gives nothing out: it ends, or it is drained
  bool drained = false;   ///< by an administrator
  std::vector<FlashPathStatus> flash;
  std::string flash_off;  ///< why configured flash is unavailable
  std::vector<Refusal> refusals;
  std::vector<NumaStatus> numa;  ///< empty: not divided over NUMA nodes
  bool insecure = false;         ///< its configuration allows networks without TLS
  /// "control", "tcp", "ucx", "ofi", "http": listen without TLS.
  std::vector<std::string> unprotected;
  std::string certificate_ends;  ///< "2027-01-31 12:00:00 UTC"; empty: no TLS
  RestartStatus restart;
  std::vector<TrafficStatus> traffic;
  MembershipStatus membership;
  std::uint64_t ddr_reserved_bytes = 0;  ///< taken for grants to come
  std::vector<UserStatus> users;         ///< who has something, or a quota of their own
};

/// One step of a job.
struct StepTime {
  std::uint64_t duration_ns = 0;
  std::uint64_t stall_ns = 0;  ///< part of the duration
};

/// What the steps of a job's plans did, as the job says. Sums are of all steps since it connected.
struct JobProgress {
  static constexpr std::size_t kLastMax = 32;
  std::uint64_t steps = 0;
  std::uint64_t stall_ns = 0;
  std::uint64_t prefetch_bytes = 0;
  std::uint64_t store_bytes = 0;
  std::uint64_t stage_in_bytes = 0;
  std::uint64_t stage_out_bytes = 0;
  std::uint64_t predicted_step_ns = 0;  ///< the plan's that ran last
  std::vector<StepTime> last;           ///< at most kLastMax, oldest first
  std::uint64_t copies_missing = 0;     ///< values that should have two homes and have one now

  [[nodiscard]] bool any() const { return steps > 0 || copies_missing > 0; }
};

struct SessionInfo {
  SessionId id;
  std::string name;
  std::uint32_t pid = 0;
  std::string peer;
  std::uint64_t granted_bytes = 0;
  std::uint64_t lease_left_ms = 0;
  std::uint64_t age_ms = 0;
  JobProgress progress = {};              ///< none (any()): it has reported nothing
  std::uint64_t scratch_flash_bytes = 0;  ///< ends with the session
  std::uint64_t published_bytes = 0;      ///< of the granted ones: published objects lie in them
  bool blocks = false;                    ///< the daemon's own, for KV blocks
};

struct SegmentInfo {
  SegmentId id;
  GlobalAddress address;  ///< its first byte
  std::uint64_t length_bytes = 0;
  SessionId session;
  std::string driver;
  std::string page_kind;
  std::optional<NumaNode> numa = {};  ///< the NUMA node that holds most of it
};

/// What the answer of a stage_out guarantees, and how long an extent lives.
enum class FlashPolicy : std::uint8_t {
  kScratch = 1,  ///< the device has accepted the data; the extent ends with its session
  kDurable = 2,  ///< the data survives a crash; the extent stays until it is freed
};

/// An extent on one node's flash. `access` is a secret: another session can open a durable extent
/// with it.
struct FlashExtent {
  std::uint64_t id = 0;
  std::uint64_t access = 0;
  std::uint64_t length_bytes = 0;
};

/// An extent on a node's flash as an administrator sees it.
struct FlashExtentInfo {
  std::uint64_t id = 0;
  std::uint64_t length_bytes = 0;
  FlashPolicy policy = FlashPolicy::kScratch;
  SessionId session = {};  ///< a session that has it open; 0: none
  std::string owner = {};  ///< "uid 1000", or the host of the job that made it
  std::string label = {};  ///< the name of that job
  std::chrono::seconds age{0};
  std::chrono::seconds unused{0};  ///< since a session had it open
  /// Until the daemon frees it, unless a session opens it; nullopt: never.
  std::optional<std::chrono::seconds> left = {};
};

/// One chunk to move between an extent and a segment of the same session and node.
struct StageSpec {
  StageDirection direction = StageDirection::kIn;
  std::uint64_t extent = 0;
  std::uint64_t extent_offset_bytes = 0;
  SegmentId segment;
  std::uint64_t segment_offset_bytes = 0;
  std::uint64_t length_bytes = 0;  ///< 1 .. kStageBytesMax
};
/// Limit per request. Larger requests would delay the first bytes of others.
inline constexpr std::uint64_t kStageBytesMax = 8 * kMiB;
/// Limit per session at a time; further requests get kBusy. Lower than the limit per connection, so
/// that lease renewals still pass.
inline constexpr std::uint32_t kStagesPerSessionMax = 48;

}  // namespace ho
