#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/prng.hpp"
#include "common/transport/transport.hpp"

namespace ho::test {

/// A clock that only the test moves. One thread.
class SimClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  /// Moves forward to `time`. An earlier time has no effect.
  void advance_to(TimePoint time) {
    if (time > now_) now_ = time;
  }
  void advance(Duration duration) { now_ += duration; }

 private:
  TimePoint now_{Duration{1'000'000}};
};

/// How the simulated network treats operations. Probabilities are per operation.
struct SimLink {
  Duration delay_min{1'000};
  Duration delay_max{20'000};     ///< uniform in [min, max], so that operations overtake each other
  std::uint64_t bytes_per_s = 0;  ///< 0: unlimited; else a peer moves one operation at a time
  double loss = 0;                ///< the operation ends by its deadline only, and closes the peer
  std::uint32_t depth_ops_max = 256;  ///< submit() returns kBusy beyond it
  std::uint64_t op_bytes_max = std::uint64_t{1} << 32U;
  /// The bytes of a put arrive although the connection has ended meanwhile, as long as the
  /// peer's process lives: it lay in buffers of the network and of that machine.
  /// In any order, for so long after the peer goes on. Zero: nothing arrives.
  Duration linger_max{};
};

/// Breaks a rule of the transport's port, for tests which show that this is found.
enum class SimFlaw : std::uint8_t {
  kNone,
  kPutDoneEarly,        ///< complete before all bytes are visible
  kGetDoneEarly,        ///< complete before all bytes are there
  kGivenBackGetWrites,  ///< the memory of a get that was given back
  kGivenBackEndsEarly,  ///< a put that was given back is complete at once, and arrives later
};

/// The peers in the simulated network: processes by address, and the memory that they expose. Keeps
/// pointers to exposed memory, so that a test can always compare bytes. One thread. Outlives its
/// transports.
class SimFabric {
 public:
  /// Adds a process that listens at `address`.
  void add_peer(const std::string& address);
  /// Kills a process: operations on it end with kUnavailable after `notice` of simulated time.
  void kill_peer(const std::string& address, Duration notice = Duration{1'000'000});
  /// Stops a process, like SIGSTOP: operations make no progress and end by their deadline.
  void stop_peer(const std::string& address);
  void resume_peer(const std::string& address);

  /// Exposes memory of a live peer. The grant has no descriptor.
  [[nodiscard]] transport::RegionGrant expose(const std::string& address,
                                              std::span<std::byte> memory,
                                              transport::Rights rights);
  /// After this, accesses end with kPermissionDenied and do not touch the memory.
  void revoke(const std::string& key);

  struct Peer {
    bool stopped = false;
    std::optional<Duration> dead_notice;  ///< dead if set: time until its peers notice
  };
  struct Region {
    std::string address;
    std::span<std::byte> memory;
    transport::Rights rights;
  };
  /// For the driver. nullptr if there is no such peer.
  [[nodiscard]] const Peer* find_peer(const std::string& address) const;
  [[nodiscard]] const Region* find_region(const std::string& key) const;
  [[nodiscard]] const std::map<std::string, Peer>& peers() const { return peers_; }

 private:
  std::map<std::string, Peer> peers_;
  std::unordered_map<std::string, Region> regions_;
  std::uint64_t next_key_ = 1;
};

/// The `sim` driver. All work happens inside poll(), at the clock's time, in an order that one seed
/// determines. Bytes move in two halves at random times between submission and completion. Until
/// then the target of a get holds garbage, which reveals callers that read or write too early.
class SimTransport : public transport::Transport {
 public:
  SimTransport(SimFabric& fabric, const Clock& clock, const SimLink& link, std::uint64_t seed);

  /// The time when the next operation moves bytes or ends, for tests that drive the clock. nullopt
  /// if nothing is in flight, or all operations wait for a stopped peer without a deadline.
  [[nodiscard]] std::optional<TimePoint> next_event() const;
  [[nodiscard]] std::size_t in_flight() const { return ops_.size(); }
  /// Sets the network's behaviour for operations submitted from now on.
  void set_link(const SimLink& link);
  void set_flaw(SimFlaw flaw) { flaw_ = flaw; }
  /// Nothing passes between this process and that peer until join().
  void cut(const std::string& address) { cut_.insert(address); }
  void join(const std::string& address) { cut_.erase(address); }
  /// Puts of connections that have ended which may still arrive.
  [[nodiscard]] std::size_t lingering() const { return late_puts_.size(); }

  [[nodiscard]] const transport::Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<transport::PeerId> connect(const transport::PeerAddress& peer,
                                                  TimePoint deadline) override;
  void close_peer(transport::PeerId peer) override;
  [[nodiscard]] Result<transport::RegionId> attach(transport::PeerId peer,
                                                   transport::RegionGrant grant) override;
  void detach(transport::RegionId region) override;
  [[nodiscard]] Result<transport::LocalId> register_memory(std::span<std::byte> memory) override;
  void unregister_memory(transport::LocalId local) override;
  [[nodiscard]] Result<void> submit(const transport::MemoryOp& asked) override;
  [[nodiscard]] Duration silence(transport::RegionId region) const override;
  [[nodiscard]] std::vector<OpId> give_back(const std::function<bool(OpId)>& which) override;
  std::size_t poll(std::span<Completion> out) override;

 private:
  enum class Phase : std::uint8_t { kQueued, kHalf, kMoved };
  struct Peer {
    std::string address;
    bool open = true;
    TimePoint busy_until{};
    TimePoint moved{};  ///< an operation of it last went on, or was the first
  };
  struct Region {
    transport::PeerId peer;
    transport::RegionGrant grant;
  };
  struct Op {
    OpId id;
    bool is_get = false;
    std::byte* local = nullptr;
    std::size_t length_bytes = 0;
    transport::LocalId memory;
    transport::RegionId region;
    std::string key;  ///< the region's, which may be detached once the operation is given back
    transport::PeerId peer;
    std::uint64_t offset_bytes = 0;
    TimePoint deadline;
    TimePoint half_at;
    TimePoint done_at;
    Phase phase = Phase::kQueued;
    bool lost = false;
    bool given_back = false;
    bool goes_on = false;         ///< given back, and its peer runs since
    std::vector<std::byte> kept;  ///< bytes of a put that was given back
  };
  /// What arrives of a put that nobody hears of any more.
  struct LatePut {
    std::string address;
    std::string key;
    std::uint64_t offset_bytes = 0;
    std::vector<std::byte> bytes;
    std::optional<TimePoint> at;  ///< set once nothing holds it up
  };
  /// Result of next_time() if nothing will happen.
  static constexpr TimePoint kNever = TimePoint::max();

  [[nodiscard]] const SimFabric::Peer& process_of(transport::PeerId peer) const;
  [[nodiscard]] TimePoint next_time(const Op& op) const;
  void step(std::size_t index, TimePoint at);
  [[nodiscard]] Errc move_half(Op& op, bool second);
  void finish(std::size_t index, Errc code);
  void fail_peer(transport::PeerId peer);
  [[nodiscard]] bool stands_still(const std::string& address) const;
  void linger(const Op& op, std::size_t from_bytes);
  void land_late_puts();

  SimFabric& fabric_;
  [[nodiscard]] TimePoint first_end(TimePoint deadline, Duration patience) const;

  const Clock& clock_;
  SimLink link_;
  Prng prng_;
  transport::Caps caps_;
  std::unordered_map<transport::PeerId, Peer> peers_;
  std::unordered_map<transport::RegionId, Region> regions_;
  std::unordered_map<transport::LocalId, std::span<std::byte>> memories_;
  std::unordered_map<std::string, TimePoint> deaths_;
  std::vector<Op> ops_;
  std::vector<Completion> done_;
  std::vector<LatePut> late_puts_;
  std::set<std::string> cut_;
  SimFlaw flaw_ = SimFlaw::kNone;
  std::uint32_t next_id_ = 1;
};

}  // namespace ho::test
