#include "tests/support/sim_transport.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::test {

using transport::LocalId;
using transport::PeerAddress;
using transport::PeerId;
using transport::RegionGrant;
using transport::RegionId;
using transport::Rights;

void SimFabric::add_peer(const std::string& address) { peers_[address] = Peer{}; }

void SimFabric::kill_peer(const std::string& address, Duration notice) {
  peers_.at(address).dead_notice = notice;
  std::erase_if(regions_, [&](const auto& entry) { return entry.second.address == address; });
}

void SimFabric::stop_peer(const std::string& address) { peers_.at(address).stopped = true; }

void SimFabric::resume_peer(const std::string& address) { peers_.at(address).stopped = false; }

RegionGrant SimFabric::expose(const std::string& address, std::span<std::byte> memory,
                              Rights rights) {
  HO_CHECK(peers_.contains(address) && !peers_.at(address).dead_notice);
  RegionGrant grant;
  grant.key = "sim-key-" + std::to_string(next_key_++);
  grant.length_bytes = memory.size();
  grant.rights = rights;
  regions_[grant.key] = Region{address, memory, rights};
  return grant;
}

void SimFabric::revoke(const std::string& key) { regions_.erase(key); }

const SimFabric::Peer* SimFabric::find_peer(const std::string& address) const {
  const auto found = peers_.find(address);
  return found == peers_.end() ? nullptr : &found->second;
}

const SimFabric::Region* SimFabric::find_region(const std::string& key) const {
  const auto found = regions_.find(key);
  return found == regions_.end() ? nullptr : &found->second;
}

SimTransport::SimTransport(SimFabric& fabric, const Clock& clock, const SimLink& link,
                           std::uint64_t seed)
    : fabric_(fabric), clock_(clock), prng_(seed) {
  caps_.name = "sim";
  caps_.needs_peer_progress = true;
  caps_.gives_back = true;
  caps_.patient = true;
  caps_.has_classes = true;
  set_link(link);
}

void SimTransport::set_link(const SimLink& link) {
  HO_CHECK(link.delay_max >= link.delay_min && link.depth_ops_max > 0);
  link_ = link;
  caps_.op_bytes_max = link.op_bytes_max;
  caps_.depth_ops_max = link.depth_ops_max;
}

Result<PeerId> SimTransport::connect(const PeerAddress& peer, TimePoint /*deadline*/) {
  const SimFabric::Peer* found = fabric_.find_peer(peer.address);
  if (found == nullptr || found->dead_notice) {
    return Error(Errc::kUnavailable, "no peer listens at " + peer.address);
  }
  if (found->stopped) return Error(Errc::kDeadline, peer.address + " does not answer");
  const PeerId id(next_id_++);
  peers_[id] = Peer{peer.address, true, TimePoint{}};
  return id;
}

void SimTransport::close_peer(PeerId peer) {
  if (peers_.contains(peer)) fail_peer(peer);
}

Result<RegionId> SimTransport::attach(PeerId peer, RegionGrant grant) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return Error(Errc::kNotFound, "no such peer");
  if (!found->second.open) return Error(Errc::kUnavailable, "the peer is closed");
  if (grant.length_bytes == 0) return Error(Errc::kInvalidArgument, "the region is empty");
  const RegionId id(next_id_++);
  regions_[id] = Region{peer, std::move(grant)};
  return id;
}

void SimTransport::detach(RegionId region) {
  HO_CHECK(std::none_of(ops_.begin(), ops_.end(),
                        [region](const Op& op) { return op.region == region && !op.given_back; }));
  regions_.erase(region);
}

Result<LocalId> SimTransport::register_memory(std::span<std::byte> memory) {
  if (memory.empty()) return Error(Errc::kInvalidArgument, "the memory is empty");
  const LocalId id(next_id_++);
  memories_[id] = memory;
  return id;
}

void SimTransport::unregister_memory(LocalId local) {
  HO_CHECK(
      std::none_of(ops_.begin(), ops_.end(), [local](const Op& op) { return op.memory == local; }));
  memories_.erase(local);
}

/// What moves at the time is not looked at: one whose link is slow has no more than its patience.
TimePoint SimTransport::first_end(TimePoint deadline, Duration patience) const {
  return patience == Duration::max() ? deadline : std::min(deadline, clock_.now() + patience);
}

Result<void> SimTransport::submit(const transport::MemoryOp& asked) {
  Op op;
  op.id = asked.op;
  op.is_get = asked.direction == transport::Direction::kGet;
  op.local = asked.bytes.data();
  op.length_bytes = asked.bytes.size();
  op.memory = asked.local;
  op.region = asked.region;
  op.offset_bytes = asked.offset_bytes;
  op.deadline = first_end(asked.deadline, asked.patience);
  if (op.length_bytes == 0 || op.length_bytes > caps_.op_bytes_max) {
    return Error(Errc::kInvalidArgument, "length");
  }
  const auto region = regions_.find(op.region);
  if (region == regions_.end()) return Error(Errc::kNotFound, "no such region");
  const auto end = checked_add(op.offset_bytes, op.length_bytes);
  if (!end || *end > region->second.grant.length_bytes) {
    return Error(Errc::kOutOfRange, "outside the region");
  }
  if (!op.is_get && region->second.grant.rights == Rights::kRead) {
    return Error(Errc::kPermissionDenied, "the region is read-only");
  }
  const auto memory = memories_.find(op.memory);
  if (memory == memories_.end())
    return Error(Errc::kInvalidArgument, "the memory is not registered");
  const std::byte* begin = memory->second.data();
  if (op.local < begin || op.local + op.length_bytes > begin + memory->second.size()) {
    return Error(Errc::kInvalidArgument, "outside the registered memory");
  }
  op.peer = region->second.peer;
  op.key = region->second.grant.key;
  Peer& peer = peers_.at(op.peer);
  if (!peer.open) return Error(Errc::kUnavailable, "the peer is closed");
  const auto in_flight = static_cast<std::size_t>(
      std::count_if(ops_.begin(), ops_.end(), [](const Op& one) { return !one.given_back; }));
  if (in_flight + done_.size() >= link_.depth_ops_max) return Error(Errc::kBusy, "queue full");
  if (silence(op.region) == Duration{0}) peer.moved = clock_.now();

  const auto spread = static_cast<std::uint64_t>((link_.delay_max - link_.delay_min).count());
  Duration delay = link_.delay_min + Duration(static_cast<std::int64_t>(prng_.below(spread + 1)));
  TimePoint start = clock_.now();
  if (link_.bytes_per_s > 0) {
    start = std::max(start, peer.busy_until);
    const auto wire =
        static_cast<double>(op.length_bytes) * 1e9 / static_cast<double>(link_.bytes_per_s);
    peer.busy_until = start + Duration(static_cast<std::int64_t>(wire));
    delay += peer.busy_until - start;
  }
  op.done_at = start + delay;
  op.half_at =
      start +
      Duration(static_cast<std::int64_t>(prng_.unit() * static_cast<double>(delay.count())));
  op.lost = prng_.unit() < link_.loss;
  if (op.is_get) std::memset(op.local, 0xDB, op.length_bytes);
  ops_.push_back(op);
  return {};
}

const SimFabric::Peer& SimTransport::process_of(PeerId peer) const {
  const SimFabric::Peer* process = fabric_.find_peer(peers_.at(peer).address);
  HO_CHECK(process != nullptr);
  return *process;
}

TimePoint SimTransport::next_time(const Op& op) const {
  const SimFabric::Peer& process = process_of(op.peer);
  TimePoint time = kNever;
  if (process.dead_notice) {
    const auto death = deaths_.find(peers_.at(op.peer).address);
    time = death == deaths_.end() ? clock_.now() : death->second;
  } else if (!op.lost && !stands_still(peers_.at(op.peer).address)) {
    time = op.phase == Phase::kQueued ? op.half_at : op.done_at;
  }
  return std::min(time, op.deadline);
}

std::optional<TimePoint> SimTransport::next_event() const {
  if (!done_.empty()) return clock_.now();
  TimePoint next = kNever;
  for (const Op& op : ops_) next = std::min(next, next_time(op));
  if (next == kNever) return std::nullopt;
  return next;
}

Duration SimTransport::silence(RegionId region) const {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return Duration{0};
  const PeerId peer = found->second.peer;
  const bool idle =
      std::none_of(ops_.begin(), ops_.end(), [peer](const Op& op) { return op.peer == peer; });
  return idle ? Duration{0} : clock_.now() - peers_.at(peer).moved;
}

std::vector<OpId> SimTransport::give_back(const std::function<bool(OpId)>& which) {
  std::vector<OpId> given;
  for (Op& op : ops_) {
    if (op.given_back || !which(op.id)) continue;
    given.push_back(op.id);
    op.given_back = true;
    op.memory = LocalId{};
    if (!op.is_get) {
      op.kept.assign(op.local, op.local + op.length_bytes);
      op.local = op.kept.data();
    }
    if (op.is_get && flaw_ != SimFlaw::kGivenBackGetWrites) op.local = nullptr;
  }
  for (std::size_t i = ops_.size(); flaw_ == SimFlaw::kGivenBackEndsEarly && i-- > 0;) {
    if (!ops_[i].given_back || ops_[i].is_get) continue;
    linger(ops_[i], 0);
    finish(i, Errc::kOk);
  }
  return given;
}

bool SimTransport::stands_still(const std::string& address) const {
  return cut_.contains(address) || fabric_.find_peer(address)->stopped;
}

void SimTransport::linger(const Op& op, std::size_t from_bytes) {
  late_puts_.push_back({peers_.at(op.peer).address,
                        op.key,
                        op.offset_bytes + from_bytes,
                        {op.local + from_bytes, op.local + op.length_bytes},
                        std::nullopt});
}

void SimTransport::land_late_puts() {
  std::erase_if(late_puts_, [&](LatePut& put) {
    const SimFabric::Region* const region = fabric_.find_region(put.key);
    if (region == nullptr || fabric_.find_peer(put.address)->dead_notice) return true;
    if (stands_still(put.address)) return false;
    const auto most = static_cast<std::uint64_t>((link_.linger_max + link_.delay_max).count());
    if (!put.at) put.at = clock_.now() + Duration(static_cast<std::int64_t>(prng_.below(most + 1)));
    if (*put.at > clock_.now()) return false;
    std::copy(put.bytes.begin(), put.bytes.end(), region->memory.data() + put.offset_bytes);
    return true;
  });
}

std::size_t SimTransport::poll(std::span<Completion> out) {
  const TimePoint now = clock_.now();
  if (!late_puts_.empty()) land_late_puts();
  for (const auto& [address, peer] : fabric_.peers()) {
    if (peer.dead_notice) deaths_.try_emplace(address, now + *peer.dead_notice);
  }
  for (Op& op : ops_) {
    if (!op.given_back || op.goes_on || stands_still(peers_.at(op.peer).address)) continue;
    // What the peer has of it, or the network, comes out in any order with what is sent now.
    const auto spread = static_cast<std::uint64_t>(link_.delay_max.count() + 1);
    op.goes_on = true;
    op.half_at = now + 2 * Duration(static_cast<std::int64_t>(prng_.below(spread)));
    op.done_at = op.half_at + Duration(static_cast<std::int64_t>(prng_.below(spread)));
  }
  while (true) {
    std::size_t first = ops_.size();
    TimePoint first_time = kNever;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const TimePoint time = next_time(ops_[i]);
      if (time < first_time) {
        first = i;
        first_time = time;
      }
    }
    if (first == ops_.size() || first_time > now) break;
    step(first, first_time);
  }
  const std::size_t count = std::min(out.size(), done_.size());
  std::copy_n(done_.begin(), count, out.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

void SimTransport::step(std::size_t index, TimePoint at) {
  Op& op = ops_[index];
  const PeerId peer = op.peer;
  const SimFabric::Peer& process = process_of(peer);
  if (process.dead_notice && at < op.deadline) {
    fail_peer(peer);
    return;
  }
  const bool stuck =
      op.lost || process.dead_notice.has_value() || stands_still(peers_.at(peer).address);
  if (stuck || (op.deadline <= at && op.done_at > at)) {
    // Like a driver that cannot cancel an operation: it closes the peer as well.
    if (link_.linger_max > Duration{0} && !op.is_get) linger(op, 0);
    finish(index, Errc::kDeadline);
    fail_peer(peer);
    return;
  }
  peers_.at(peer).moved = clock_.now();
  if (op.phase == Phase::kQueued) {
    const Errc code = move_half(op, false);
    if (code != Errc::kOk) return finish(index, code);
    op.phase = Phase::kHalf;
    if (flaw_ == SimFlaw::kGetDoneEarly && op.is_get) return finish(index, Errc::kOk);
    if (flaw_ != SimFlaw::kPutDoneEarly || op.is_get) return;
    linger(op, op.length_bytes / 2);
    return finish(index, Errc::kOk);
  }
  const Errc code = move_half(op, true);
  op.phase = Phase::kMoved;
  finish(index, code);
}

Errc SimTransport::move_half(Op& op, bool second) {
  const SimFabric::Region* found = fabric_.find_region(op.key);
  if (found == nullptr) return Errc::kPermissionDenied;
  const SimFabric::Region& region = *found;
  if (region.address != peers_.at(op.peer).address) return Errc::kPermissionDenied;
  if (op.offset_bytes + op.length_bytes > region.memory.size()) return Errc::kPermissionDenied;
  if (!op.is_get && region.rights == Rights::kRead) return Errc::kPermissionDenied;
  const std::size_t middle = op.length_bytes / 2;
  const std::size_t begin = second ? middle : 0;
  const std::size_t length = second ? op.length_bytes - middle : middle;
  if (length == 0) return Errc::kOk;
  std::byte* remote = region.memory.data() + op.offset_bytes + begin;
  if (op.is_get && op.local == nullptr) {
    // Given back.
  } else if (op.is_get) {
    std::memcpy(op.local + begin, remote, length);
  } else {
    std::memcpy(remote, op.local + begin, length);
  }
  return Errc::kOk;
}

void SimTransport::finish(std::size_t index, Errc code) {
  const Op op = ops_[index];
  ops_.erase(ops_.begin() + static_cast<std::ptrdiff_t>(index));
  done_.push_back(Completion{op.id, code, code == Errc::kOk ? op.length_bytes : 0});
}

void SimTransport::fail_peer(PeerId peer) {
  peers_.at(peer).open = false;
  for (std::size_t i = ops_.size(); i-- > 0;) {
    if (ops_[i].peer != peer) continue;
    if (link_.linger_max > Duration{0} && !ops_[i].is_get) linger(ops_[i], 0);
    finish(i, Errc::kUnavailable);
  }
}

}  // namespace ho::test
