#include "common/transport/local/local_transport.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/system/memory_guard.hpp"
#include "common/transport/local/copy.hpp"
#include "common/transport/local/copy_team.hpp"

namespace ho::transport {
namespace {

/// Copied at once in submit(): queueing would cost more than the copy.
constexpr std::uint64_t kSubmitBytesMax = 4 * kKiB;
/// What one poll() copies at most, so that its caller can attend to other ports (about 100 us).
constexpr std::uint64_t kPollBytesMax = kMiB;
/// Shared with the helpers from here on.
constexpr std::uint64_t kSharedBytesMin = 2 * CopyTeam::kSliceBytes;
static_assert(LocalOptions::kCopyThreadsMax == 1 + CopyTeam::kHelpersMax);
constexpr std::uint64_t kOpBytesMax = std::uint64_t{1} << 40U;

/// One mapped segment. Unmapped when it goes.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* base, std::size_t length_bytes)
      : base_(static_cast<std::byte*>(base)), length_bytes_(length_bytes) {}
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        length_bytes_(std::exchange(other.length_bytes_, 0)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (base_ != nullptr) ::munmap(base_, length_bytes_);
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {base_, length_bytes_}; }

 private:
  std::byte* base_ = nullptr;
  std::size_t length_bytes_ = 0;
};

enum class PeerState : std::uint8_t { kOpen, kClosed };

/// A segment in use. It does not move: operations that are queued point to it.
struct Region {
  PeerId peer;
  PeerState peer_state = PeerState::kOpen;
  Rights rights = Rights::kRead;
  Mapping mapping;
};

/// An accepted operation.
///
/// This and completions are copied field by field. Streaming stores wait in the processor until
/// memory takes them, and every later store behind them; a load has to wait with these where it
/// spans what several of them wrote, as the copy of a whole struct does. It took 0.4 to 0.9 % of
/// the speed at 64 KiB (AMD EPYC, 2026-11-22).
struct Pending {
  OpId op;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t length_bytes = 0;
  std::uint64_t copied_bytes = 0;
  const Region* region = nullptr;
  LocalId local;
  TimePoint deadline;
};

/// The initiator's side; see make_local_transport(). Owner thread: the one that polls.
class LocalTransport final : public Transport {
 public:
  LocalTransport(const LocalOptions& options, const Clock& clock) : clock_(clock) {
    caps_.name = "local";
    caps_.op_bytes_max = kOpBytesMax;
    caps_.depth_ops_max = options.depth_ops_max;
    caps_.needs_descriptor = true;
    queue_.resize(options.depth_ops_max);
    done_.reserve(options.depth_ops_max);
    if (options.copy_threads > 1) team_.emplace(options.copy_threads - 1);
  }

  [[nodiscard]] const Caps& caps() const override { return caps_; }

  [[nodiscard]] Result<PeerId> connect(const PeerAddress& peer, TimePoint /*deadline*/) override {
    if (peer.address != "local") {
      return Error(Errc::kInvalidArgument, "not an address of the local driver: " + peer.address);
    }
    const PeerId id(next_id_++);
    peers_[id] = PeerState::kOpen;
    return id;
  }

  void close_peer(PeerId peer) override;
  [[nodiscard]] Result<RegionId> attach(PeerId peer, RegionGrant grant) override;
  void detach(RegionId region) override;
  [[nodiscard]] Result<LocalId> register_memory(std::span<std::byte> memory) override;
  void unregister_memory(LocalId local) override;
  [[nodiscard]] Result<void> submit(const MemoryOp& op) override;
  std::size_t poll(std::span<Completion> out) override;

 private:
  /// @return the operation's region, if its copy may start.
  [[nodiscard]] Result<const Region*> admit(const MemoryOp& op) const;
  void accept(const Pending& pending);
  /// Copies the next piece. @return kPermissionDenied where the segment was cut short.
  [[nodiscard]] Errc copy(const Pending& pending, std::uint64_t length_bytes);
  void copy_some();
  void expire(TimePoint now);
  void finish(const Pending& pending, Errc code);
  template <typename Condition>
  void end_where(const Condition& condition, Errc code);
  [[nodiscard]] Pending& queued(std::size_t index) {
    const std::size_t place = queue_head_ + index;
    return queue_[place < queue_.size() ? place : place - queue_.size()];
  }
  template <typename Condition>
  [[nodiscard]] bool any_queued(const Condition& condition) {
    for (std::size_t i = 0; i < queue_count_; ++i) {
      if (condition(queued(i))) return true;
    }
    return false;
  }

  const Clock& clock_;
  Caps caps_;
  std::unordered_map<PeerId, PeerState> peers_;
  std::unordered_map<RegionId, Region> regions_;  ///< one whose elements do not move
  std::unordered_map<LocalId, std::span<std::byte>> memories_;
  std::vector<Pending> queue_;  ///< a ring of depth_ops_max places
  std::size_t queue_head_ = 0;
  std::size_t queue_count_ = 0;
  std::vector<Completion> done_;  ///< ended, waiting for poll(); from done_head_ on
  std::size_t done_head_ = 0;
  TimePoint earliest_ = TimePoint::max();  ///< no queued operation has an earlier deadline
  std::uint32_t next_id_ = 1;
  std::optional<CopyTeam> team_;
};

Result<RegionId> LocalTransport::attach(PeerId peer, RegionGrant grant) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return Error(Errc::kNotFound, "no such peer");
  if (found->second == PeerState::kClosed) return Error(Errc::kUnavailable, "the peer is closed");
  if (!grant.fd.valid()) return Error(Errc::kInvalidArgument, "the grant carries no descriptor");
  if (grant.length_bytes == 0) return Error(Errc::kInvalidArgument, "an empty region");
  struct stat status {};
  if (::fstat(grant.fd.get(), &status) != 0) return errno_error(errno, "fstat of a segment");
  if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) < grant.length_bytes) {
    return Error(Errc::kPermissionDenied, "the segment is shorter than its grant (revoked?)");
  }
  const int protection = grant.rights == Rights::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  // Populated now: first touches during a step would cost ten times the copy.
  void* base =
      ::mmap(nullptr, grant.length_bytes, protection, MAP_SHARED | MAP_POPULATE, grant.fd.get(), 0);
  if (base == MAP_FAILED) return errno_error(errno, "mapping a segment");
  const RegionId id(next_id_++);
  regions_.emplace(id,
                   Region{peer, PeerState::kOpen, grant.rights, Mapping(base, grant.length_bytes)});
  return id;
}

void LocalTransport::detach(RegionId region) {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return;
  const Region* const used = &found->second;
  HO_CHECK(!any_queued([used](const Pending& pending) { return pending.region == used; }));
  regions_.erase(found);
}

Result<LocalId> LocalTransport::register_memory(std::span<std::byte> memory) {
  if (memory.empty()) return Error(Errc::kInvalidArgument, "no memory to register");
  const LocalId id(next_id_++);
  memories_[id] = memory;
  return id;
}

void LocalTransport::unregister_memory(LocalId local) {
  HO_CHECK(!any_queued([local](const Pending& pending) { return pending.local == local; }));
  memories_.erase(local);
}

Result<const Region*> LocalTransport::admit(const MemoryOp& op) const {
  if (op.bytes.empty() || op.bytes.size() > caps_.op_bytes_max) {
    return Error(Errc::kInvalidArgument, "length");
  }
  const auto found = regions_.find(op.region);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such region");
  if (found->second.peer_state == PeerState::kClosed) {
    return Error(Errc::kUnavailable, "peer closed");
  }
  const auto end = checked_add(op.offset_bytes, op.bytes.size());
  if (!end || *end > found->second.mapping.bytes().size()) {
    return Error(Errc::kOutOfRange, "region");
  }
  const auto memory = memories_.find(op.local);
  if (memory == memories_.end()) return Error(Errc::kInvalidArgument, "not registered");
  if (!op.inside(memory->second)) return Error(Errc::kInvalidArgument, "not in local");
  if (queue_count_ + (done_.size() - done_head_) >= caps_.depth_ops_max) {
    return Error(Errc::kBusy, "queue full");
  }
  return &found->second;
}

Result<void> LocalTransport::submit(const MemoryOp& op) {
  const auto region = admit(op);
  if (!region) return region.error();
  const bool put = op.direction == Direction::kPut;
  if (put && (*region)->rights == Rights::kRead) {
    return Error(Errc::kPermissionDenied, "read-only");
  }
  std::byte* const remote = (*region)->mapping.bytes().data() + op.offset_bytes;
  std::byte* const local = op.bytes.data();
  accept(Pending{op.op, put ? remote : local, put ? local : remote, op.bytes.size(), 0, *region,
                 op.local, op.deadline});
  return {};
}

void LocalTransport::accept(const Pending& pending) {
  HO_CHECK(queue_count_ < queue_.size());
  if (pending.length_bytes <= kSubmitBytesMax) {
    finish(pending, copy(pending, pending.length_bytes));
    return;
  }
  Pending& place = queued(queue_count_);
  place.op = pending.op;  // field by field: see Pending
  place.to = pending.to;
  place.from = pending.from;
  place.length_bytes = pending.length_bytes;
  place.copied_bytes = pending.copied_bytes;
  place.region = pending.region;
  place.local = pending.local;
  place.deadline = pending.deadline;
  ++queue_count_;
  earliest_ = std::min(earliest_, pending.deadline);
}

Errc LocalTransport::copy(const Pending& pending, std::uint64_t length_bytes) {
  std::byte* const to = pending.to + pending.copied_bytes;
  const std::byte* const from = pending.from + pending.copied_bytes;
  const std::uint64_t total_bytes = pending.length_bytes;
  const std::span<std::byte> segment = pending.region->mapping.bytes();
  const bool there = team_ && length_bytes >= kSharedBytesMin
                         ? team_->copy({to, from, length_bytes, total_bytes, segment})
                         : guarded(segment, [to, from, length_bytes, total_bytes] {
                             copy_piece(to, from, length_bytes, total_bytes);
                           });
  return there ? Errc::kOk : Errc::kPermissionDenied;
}

std::size_t LocalTransport::poll(std::span<Completion> out) {
  if (queue_count_ > 0) {
    const TimePoint now = clock_.now();
    if (now >= earliest_) expire(now);
    copy_some();
  }
  const std::size_t count = std::min(out.size(), done_.size() - done_head_);
  for (Completion& completion : out.first(count)) {
    const Completion& ended = done_[done_head_++];
    completion.op = ended.op;
    completion.code = ended.code;
    completion.moved_bytes = ended.moved_bytes;
  }
  if (done_head_ == done_.size()) {
    done_.clear();
    done_head_ = 0;
  }
  return count;
}

void LocalTransport::copy_some() {
  std::uint64_t budget_bytes = kPollBytesMax;
  while (queue_count_ > 0 && budget_bytes > 0) {
    Pending& head = queued(0);
    const std::uint64_t piece_bytes = std::min(head.length_bytes - head.copied_bytes, budget_bytes);
    const Errc code = copy(head, piece_bytes);
    head.copied_bytes += piece_bytes;
    budget_bytes -= piece_bytes;
    if (code == Errc::kOk && head.copied_bytes < head.length_bytes) return;
    finish(head, code);
    ++queue_head_;
    if (queue_head_ == queue_.size()) queue_head_ = 0;
    --queue_count_;
  }
}

void LocalTransport::finish(const Pending& pending, Errc code) {
  if (done_.size() == done_.capacity() && done_head_ > 0) {
    // The polled part is given back before the vector would grow: nothing is allocated here.
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(done_head_));
    done_head_ = 0;
  }
  HO_CHECK(done_.size() < done_.capacity());
  done_.push_back(Completion{pending.op, code, code == Errc::kOk ? pending.length_bytes : 0});
}

template <typename Condition>
void LocalTransport::end_where(const Condition& condition, Errc code) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < queue_count_; ++i) {
    const Pending pending = queued(i);
    if (condition(pending)) {
      finish(pending, code);
    } else {
      queued(kept++) = pending;
    }
  }
  queue_count_ = kept;
}

void LocalTransport::expire(TimePoint now) {
  end_where([now](const Pending& pending) { return pending.deadline <= now; }, Errc::kDeadline);
  earliest_ = TimePoint::max();
  for (std::size_t i = 0; i < queue_count_; ++i) {
    earliest_ = std::min(earliest_, queued(i).deadline);
  }
}

void LocalTransport::close_peer(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second = PeerState::kClosed;
  end_where([peer](const Pending& pending) { return pending.region->peer == peer; },
            Errc::kUnavailable);
  for (auto& [id, region] : regions_) {
    if (region.peer == peer) region.peer_state = PeerState::kClosed;
  }
}

}  // namespace

std::uint32_t usual_copy_threads() {
  constexpr unsigned kCoresPerHelper = 8;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;  // more cores than fit the set
  const auto count = static_cast<unsigned>(CPU_COUNT(&cores));
  return std::min(LocalOptions::kCopyThreadsMax, 1 + count / kCoresPerHelper);
}

Result<std::unique_ptr<Transport>> make_local_transport(const LocalOptions& options,
                                                        const Clock& clock) {
  if (options.depth_ops_max == 0) return Error(Errc::kInvalidArgument, "a depth of 0 operations");
  if (options.copy_threads == 0 || options.copy_threads > LocalOptions::kCopyThreadsMax) {
    return Error(Errc::kInvalidArgument, "local: copies are made by 1 to " +
                                             std::to_string(LocalOptions::kCopyThreadsMax) +
                                             " threads");
  }
  const auto guard = install_memory_guard();
  if (!guard) return guard.error();
  (void)streaming_bytes_min();  // measured now rather than in the first transfer
  return std::unique_ptr<Transport>(std::make_unique<LocalTransport>(options, clock));
}

}  // namespace ho::transport
