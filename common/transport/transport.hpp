#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/counters.hpp"
#include "common/base/result.hpp"
#include "common/base/strong.hpp"
#include "common/model/address.hpp"
#include "common/model/op.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::transport {

/// A peer this transport is connected to. Never reused, so a reconnect is a new generation.
using PeerId = Strong<struct PeerIdTag, std::uint32_t>;
/// A remote region this transport may access.
using RegionId = Strong<struct RegionIdTag, std::uint32_t>;
/// Local memory that this transport may read from or write into.
using LocalId = Strong<struct LocalIdTag, std::uint32_t>;

enum class Rights : std::uint8_t { kRead = 1, kReadWrite = 3 };

/// Fixed properties of a driver.
struct Caps {
  std::string_view name;             ///< "local", "tcp", "sim"
  std::uint64_t op_bytes_max = 0;    ///< largest single operation
  std::uint32_t depth_ops_max = 0;   ///< operations in flight beyond which submit() answers kBusy
  bool needs_peer_progress = false;  ///< operations stop while the peer's process is stopped
  bool needs_descriptor = false;     ///< attach() needs RegionGrant::fd (same node)
  bool gives_back = false;           ///< give_back() and silence() work
  bool patient = false;              ///< `patience` of operations works
  bool has_classes = false;          ///< the target divides links among classes of traffic
};

/// What an operation is for. Where several wait for a link, the earlier ones go first, and the
/// others keep a part of it: bytes that an op or a caller waits for, those of objects that are
/// published and read, and homes that are made anew or moved.
enum class TrafficClass : std::uint8_t { kDeadline, kBulk, kBackground };
inline constexpr std::size_t kTrafficClasses = 3;

/// What an owner's sessions have moved. One thread counts, any thread reads.
struct LinkUse {
  Counter in_bytes;
  Counter out_bytes;
  Counter waited_us;  ///< that something waited for its turn
};

/// What a session may have of links that others use too.
struct LinkShare {
  std::string owner;                  ///< its sessions share one part
  std::uint32_t weight = 1;           ///< of the owner's part, against others'; above 0
  std::uint64_t bytes_per_s_min = 0;  ///< that the owner has at least, each way
  std::shared_ptr<LinkUse> use = {};  ///< counts for the owner; null: nobody does
};

/// As whom a peer's Target is reached.
struct Credentials {
  SessionId session{};
  std::string token;  ///< a secret; over the network drivers that check it
  /// The certificate that opened the session: "job trainer". Drivers with TLS serve nobody else.
  /// Empty: opened without one, over the Unix socket. Targets alone need it.
  std::string certificate = {};
  LinkShare share = {};  ///< targets alone need it
};

/// Names connections to be ended: those of one rail of a session, up to a generation.
struct RailFence {
  std::uint32_t rail = 0;        ///< from 0, in the order of the address
  std::uint32_t generation = 0;  ///< the last that must end
};

/// Asks a peer, by another way than the data's, to end its side of a rail. The answer means that
/// nothing which was sent on the rail until then reaches memory any more; the text is the peer's
/// address from now on, empty: the same. Does not block; called by the transport's owner thread.
using FenceRequest = std::function<std::future<Result<std::string>>(const RailFence&)>;

/// How to reach a peer's Target.
struct PeerAddress {
  NodeId node;
  std::string address;  ///< the driver's own bytes, as Target::admit() gave them
  Credentials session = {};
  /// Empty: a rail that is lost ends the peer. Else it is fenced, what it carried is repeated, and
  /// it is connected anew. Outlives the transport.
  FenceRequest fence = {};
};

/// What a Target gives out for one exposed region, as it crossed the control connection.
struct RegionGrant {
  std::string key;  ///< the driver's own bytes; a secret
  UniqueFd fd;      ///< the segment's memfd for drivers with needs_descriptor; else not valid
  std::uint64_t length_bytes = 0;
  Rights rights = Rights::kReadWrite;
};

enum class Direction : std::uint8_t { kGet, kPut };

/// One read (kGet) or write (kPut) of remote memory.
struct MemoryOp {
  Direction direction = Direction::kGet;
  OpId op;
  std::span<std::byte> bytes;  ///< inside `local`; a put only reads them
  LocalId local;
  RegionId region;
  std::uint64_t offset_bytes = 0;  ///< in the region
  TimePoint deadline;
  /// The lease on the region: unlike the deadline it never moves, whatever stopped this process.
  TimePoint not_after = TimePoint::max();
  /// Once nothing has moved between here and the peer for so long, it ends with kDeadline before
  /// its deadline. Only with Caps::patient.
  Duration patience = Duration::max();
  TrafficClass traffic = TrafficClass::kDeadline;

  /// Its local bytes are all in the memory.
  [[nodiscard]] bool inside(std::span<const std::byte> memory) const {
    const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
    return begin >= start && begin - start <= memory.size() &&
           bytes.size() <= memory.size() - (begin - start);
  }
};

/// One-sided access to memory that peers have exposed (the initiator's side).
///
/// Threads: one owner thread. submit() and poll() never block, allocate or run user code;
/// connecting, attaching and registering may block (bounded by their own deadlines) and belong to
/// start-up. An operation's bytes belong to the transport until its completion came out of poll();
/// no order between operations. Every accepted operation completes by its deadline (plus 100 ms) at
/// the latest, with kDeadline if nothing else (a driver may leave out time in which this process
/// was itself stopped and did not poll, up to the operation's not_after); a driver that cannot take
/// an operation back closes the peer to keep this promise, and then the peer's other operations end
/// with kUnavailable.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual const Caps& caps() const = 0;

  /// Makes a peer reachable. @return kUnavailable, kDeadline, kInvalidArgument (not an address of
  /// this driver).
  [[nodiscard]] virtual Result<PeerId> connect(const PeerAddress& peer, TimePoint deadline) = 0;

  /// Force close: every operation in flight to the peer completes (kUnavailable) by the next poll()
  /// calls; its regions are detached. Idempotent. Called by the owner when the control connection
  /// is lost.
  virtual void close_peer(PeerId peer) = 0;

  /// Takes a remote region into use. The grant's key is checked at the first access at the latest.
  [[nodiscard]] virtual Result<RegionId> attach(PeerId peer, RegionGrant grant) = 0;

  /// Ends use of a region. No operation on it may be in flight.
  virtual void detach(RegionId region) = 0;

  /// Registers local memory for operations. The memory outlives unregister_memory().
  [[nodiscard]] virtual Result<LocalId> register_memory(std::span<std::byte> memory) = 0;

  /// No operation on it may be in flight.
  virtual void unregister_memory(LocalId local) = 0;

  /// Reads remote bytes into local memory, or writes local bytes to remote memory. A put's
  /// completion means *visible at the peer*, not merely sent.
  /// @return accepted: one Completion with op.op will come out of poll(): kOk; kPermissionDenied
  ///         (wrong or revoked key, missing right); kUnavailable (peer gone); kDeadline.
  ///         kBusy: queue full, nothing started, poll() and retry. kInvalidArgument, kOutOfRange,
  ///         kNotFound (unknown region), kUnavailable (peer closed), kPermissionDenied (a put to a
  ///         read-only region): nothing started.
  [[nodiscard]] virtual Result<void> submit(const MemoryOp& op) = 0;

  /// How long nothing has come from the region's peer, or reached it, of the time in which this
  /// process polled; zero while it owes nothing. Always zero without Caps::gives_back.
  [[nodiscard]] virtual Duration silence(RegionId /*region*/) const { return Duration{0}; }

  /// Gives the bytes of operations in flight back before their completions, which still come, by
  /// their deadlines: their local memory and region are not used any more. What a get brings is
  /// thrown away. A put may be carried out as long as its completion has not come, with the bytes
  /// that it had. Does not block; may allocate.
  /// @param which  says of an operation whether it is meant. @return those that are given back;
  /// none without Caps::gives_back.
  [[nodiscard]] virtual std::vector<OpId> give_back(const std::function<bool(OpId)>& /*which*/) {
    return {};
  }

  /// Makes progress and moves up to out.size() completions into `out`. @return how many were
  /// written.
  virtual std::size_t poll(std::span<Completion> out) = 0;
};

}  // namespace ho::transport
