#include "daemon/keep/manifest.hpp"

#include <manifest.pb.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/units.hpp"
#include "proto/control/control_values.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

constexpr std::uint64_t kMagic = 0x3130'504b'5f4f'48ULL;  // "HO_KP01"
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kEndAt = 8;
constexpr std::size_t kAliveAt = 16;
constexpr std::size_t kCellsAt = 64;
constexpr std::size_t kWordBytes = 8;
constexpr std::size_t kLogAt = kCellsAt + kLeaseCells * kWordBytes;
/// A record: its length, its place (so that a copy elsewhere does not count), checksum, payload.
constexpr std::size_t kFrameBytes = 24;
/// The largest record is a session with its names, some hundred bytes each.
constexpr std::size_t kRecordBytesMax = 16 * kKiB;

constexpr unsigned kValueBits = 48;
constexpr std::uint64_t kValueMask = (std::uint64_t{1} << kValueBits) - 1;
/// Times are written in units of 2^16 ns, so that 48 bits suffice for centuries.
constexpr unsigned kTimeShift = 16;

std::uint64_t sealed(std::uint64_t value) {
  HO_CHECK(value <= kValueMask);
  const std::uint64_t sum = checksum64(std::as_bytes(std::span(&value, 1)));
  return value | (sum << kValueBits);
}

std::optional<std::uint64_t> unsealed(std::uint64_t word) {
  const std::uint64_t value = word & kValueMask;
  if (sealed(value) != word) return std::nullopt;
  return value;
}

std::uint64_t to_value(TimePoint time) {
  const auto ns = std::max<Duration::rep>(time.time_since_epoch().count(), 0);
  return static_cast<std::uint64_t>(ns) >> kTimeShift;
}

TimePoint to_time(std::uint64_t value) {
  return TimePoint(Duration(static_cast<Duration::rep>(value << kTimeShift)));
}

std::uint64_t load_word(std::span<const std::byte> memory, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, memory.data() + at, sizeof word);
  return word;
}

std::uint64_t sum_of(std::uint64_t length, std::uint64_t place,
                     std::span<const std::byte> payload) {
  ChecksumStream sum;
  sum.update(std::as_bytes(std::span(&length, 1)));
  sum.update(std::as_bytes(std::span(&place, 1)));
  sum.update(payload);
  return sum.digest();
}

std::string encode(const KeptNode& node) {
  pb::ManifestRecord record;
  auto* to = record.mutable_node();
  to->set_node_id(node.node.value());
  to->set_incarnation(node.incarnation);
  to->set_generation(node.generation);
  to->set_segment_bytes(node.segment_bytes);
  to->set_next_session_id(node.next_session.value());
  to->set_next_segment_id(node.next_segment.value());
  to->set_unix_socket(node.unix_socket);
  to->set_socket_device(node.socket_device);
  to->set_socket_inode(node.socket_inode);
  return record.SerializeAsString();
}

std::string encode(const KeptSession& session) {
  pb::ManifestRecord record;
  auto* to = record.mutable_session();
  to->set_session_id(session.id.value());
  to->set_token(session.token);
  to->set_name(session.name);
  to->set_pid(session.pid);
  to->set_peer(session.peer);
  to->set_owner(session.owner);
  to->set_certificate(session.certificate);
  to->set_driver(session.driver);
  to->set_opened_ns(static_cast<std::uint64_t>(session.opened.time_since_epoch().count()));
  to->set_lease_cell(session.lease_cell);
  return record.SerializeAsString();
}

std::string encode(const KeptSegment& segment) {
  pb::ManifestRecord record;
  auto* to = record.mutable_segment();
  to->set_segment_id(segment.id.value());
  to->set_session_id(segment.session.value());
  to->set_offset(segment.offset_bytes);
  to->set_driver(segment.driver);
  to->set_read_only(segment.rights == transport::Rights::kRead);
  to->set_device(segment.device);
  to->set_inode(segment.inode);
  to->set_page_kind(static_cast<std::uint32_t>(segment.pages));
  if (segment.share) to->set_numa_share(segment.share->value());
  if (segment.numa) to->set_numa_node(segment.numa->value());
  return record.SerializeAsString();
}

std::string encode(const SessionEnded& ended) {
  pb::ManifestRecord record;
  record.set_ended_session_id(ended.id.value());
  return record.SerializeAsString();
}

std::string encode(const SegmentEnded& ended) {
  pb::ManifestRecord record;
  record.set_ended_segment_id(ended.id.value());
  return record.SerializeAsString();
}

Result<ManifestEntry> decode(const pb::ManifestNode& from) {
  if (from.node_id() > kNodeIdMax) return Error(Errc::kCorrupt, "the node id is out of range");
  KeptNode to;
  to.node = NodeId(static_cast<std::uint16_t>(from.node_id()));
  to.incarnation = from.incarnation();
  to.generation = from.generation();
  to.segment_bytes = from.segment_bytes();
  to.next_session = SessionId(from.next_session_id());
  to.next_segment = SegmentId(from.next_segment_id());
  to.unix_socket = from.unix_socket();
  to.socket_device = from.socket_device();
  to.socket_inode = from.socket_inode();
  return ManifestEntry(std::move(to));
}

ManifestEntry decode(const pb::ManifestSession& from) {
  KeptSession to;
  to.id = SessionId(from.session_id());
  to.token = from.token();
  to.name = from.name();
  to.pid = from.pid();
  to.peer = from.peer();
  to.owner = from.owner();
  to.certificate = from.certificate();
  to.driver = from.driver();
  to.opened = TimePoint(Duration(static_cast<Duration::rep>(from.opened_ns())));
  to.lease_cell = from.lease_cell();
  return to;
}

Result<ManifestEntry> decode(const pb::ManifestSegment& from) {
  if (from.page_kind() > static_cast<std::uint32_t>(PageKind::k4K)) {
    return Error(Errc::kCorrupt, "a kind of pages that there is not");
  }
  KeptSegment to;
  to.id = SegmentId(from.segment_id());
  to.session = SessionId(from.session_id());
  to.offset_bytes = from.offset();
  to.driver = from.driver();
  to.rights = from.read_only() ? transport::Rights::kRead : transport::Rights::kReadWrite;
  to.device = from.device();
  to.inode = from.inode();
  to.pages = static_cast<PageKind>(from.page_kind());
  if (from.has_numa_share()) to.share = NumaNode(from.numa_share());
  if (from.has_numa_node()) to.numa = NumaNode(from.numa_node());
  return ManifestEntry(std::move(to));
}

Result<ManifestEntry> decode(std::span<const std::byte> payload) {
  pb::ManifestRecord record;
  if (!record.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return Error(Errc::kCorrupt, "a record that is none");
  }
  switch (record.body_case()) {
    case pb::ManifestRecord::kNode: return decode(record.node());
    case pb::ManifestRecord::kSession: return decode(record.session());
    case pb::ManifestRecord::kSegment: return decode(record.segment());
    case pb::ManifestRecord::kEndedSessionId:
      return ManifestEntry(SessionEnded{SessionId(record.ended_session_id())});
    case pb::ManifestRecord::kEndedSegmentId:
      return ManifestEntry(SegmentEnded{SegmentId(record.ended_segment_id())});
    case pb::ManifestRecord::BODY_NOT_SET: break;
  }
  return Error(Errc::kUnsupported, "a record that this version does not know");
}

Error unfit(const std::string& what) {
  return Error(Errc::kCorrupt, "the manifest contradicts itself: " + what);
}

/// Makes one entry so; each overload is one kind.
struct Change {
  Kept& kept;

  Result<void> operator()(const KeptNode& node) const {
    if (kept.node.incarnation != 0) return unfit("two nodes");
    if (node.incarnation == 0 || node.segment_bytes < kSegmentBytesMin ||
        node.segment_bytes > kSegmentBytesMax) {
      return unfit("no incarnation, or segments of a wrong size");
    }
    kept.node = node;
    return {};
  }

  Result<void> operator()(const KeptSession& session) const {
    const bool fits = session.token.size() == kSessionTokenBytes &&
                      session.lease_cell < kLeaseCells && session.id.value() > 0 &&
                      session.id.value() < UINT64_MAX;
    if (!fits || !kept.sessions.emplace(session.id, session).second) return unfit("a session");
    kept.node.next_session =
        SessionId(std::max(kept.node.next_session.value(), session.id.value() + 1));
    return {};
  }

  Result<void> operator()(const KeptSegment& segment) const {
    const bool fits = kept.sessions.count(segment.session) == 1 && segment.id.value() > 0 &&
                      segment.id.value() < UINT64_MAX &&
                      segment.offset_bytes <= kTierOffsetMax - kept.node.segment_bytes &&
                      segment.offset_bytes % kept.node.segment_bytes == 0;
    if (!fits || kept.segments.count(segment.id) > 0 ||
        !kept.offsets.insert(segment.offset_bytes).second) {
      return unfit("a segment");
    }
    kept.segments.emplace(segment.id, segment);
    kept.node.next_segment =
        SegmentId(std::max(kept.node.next_segment.value(), segment.id.value() + 1));
    return {};
  }

  Result<void> operator()(const SessionEnded& ended) const {
    if (kept.sessions.erase(ended.id) == 0) return unfit("an ended session");
    std::erase_if(kept.segments, [&](const auto& entry) {
      if (entry.second.session != ended.id) return false;
      kept.offsets.erase(entry.second.offset_bytes);
      return true;
    });
    return {};
  }

  Result<void> operator()(const SegmentEnded& ended) const {
    const auto found = kept.segments.find(ended.id);
    if (found == kept.segments.end()) return unfit("an ended segment");
    kept.offsets.erase(found->second.offset_bytes);
    kept.segments.erase(found);
    return {};
  }
};

}  // namespace

Result<void> Kept::apply(const ManifestEntry& entry) {
  if (node.incarnation == 0 && !std::holds_alternative<KeptNode>(entry)) {
    return unfit("no node in front");
  }
  return std::visit(Change{*this}, entry);
}

std::uint64_t ManifestLog::bytes_for(const Kept& state) {
  std::uint64_t bytes = encode(state.node).size() + kFrameBytes;
  for (const auto& [id, session] : state.sessions)
    bytes += encode(session).size() + 2 * kFrameBytes;
  for (const auto& [id, segment] : state.segments)
    bytes += encode(segment).size() + 2 * kFrameBytes;
  return align_up(kLogAt + 2 * bytes + kMiB, kMiB);
}

Result<ManifestLog> ManifestLog::create(std::span<std::byte> memory, Kept state) {
  HO_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % kWordBytes == 0);
  ManifestLog log(memory);
  if (memory.size() < kLogAt) return Error(Errc::kExhausted, "no room for a manifest");
  log.end_ = kLogAt;
  for (std::uint32_t cell = 0; cell < kLeaseCells; ++cell) {
    log.free_cells_.insert(log.free_cells_.end(), cell);
  }
  if (auto done = log.append(state.node); !done) return done.error();
  for (auto& [id, session] : state.sessions) {
    if (auto done = log.append(std::move(session)); !done) return done.error();
  }
  for (auto& [id, segment] : state.segments) {
    if (auto done = log.append(std::move(segment)); !done) return done.error();
  }
  log.set_alive(state.alive);
  // Last: without it nobody takes the memory for a manifest.
  const std::uint64_t magic = kMagic;
  std::memcpy(memory.data() + kMagicAt, &magic, sizeof magic);
  return log;
}

void ManifestLog::store_word(std::size_t at, std::uint64_t value) {
  HO_CHECK(at % kWordBytes == 0 && at + kWordBytes <= memory_.size());
  auto* const word = reinterpret_cast<std::uint64_t*>(memory_.data() + at);
  // One store, after all that it speaks of.
  std::atomic_ref<std::uint64_t>(*word).store(sealed(value), std::memory_order_release);
}

void ManifestLog::set_lease(SessionId session, TimePoint end) {
  KeptSession& kept = state_.sessions.at(session);
  kept.lease_end = end;
  store_word(kCellsAt + kept.lease_cell * kWordBytes, to_value(end));
}

void ManifestLog::set_alive(TimePoint now) {
  state_.alive = now;
  store_word(kAliveAt, to_value(now));
}

Result<void> ManifestLog::append(ManifestEntry entry) {
  auto* const session = std::get_if<KeptSession>(&entry);
  if (session != nullptr) {
    if (free_cells_.empty()) return Error(Errc::kExhausted, "the manifest has too many sessions");
    session->lease_cell = *free_cells_.begin();
    store_word(kCellsAt + session->lease_cell * kWordBytes, to_value(session->lease_end));
  }
  std::optional<std::uint32_t> freed;
  if (const auto* const ended = std::get_if<SessionEnded>(&entry)) {
    const auto found = state_.sessions.find(ended->id);
    if (found != state_.sessions.end()) freed = found->second.lease_cell;
  }
  const std::size_t before = end_;
  if (auto written = write(entry); !written) return written;
  if (auto applied = state_.apply(entry); !applied) {
    end_ = before;
    return applied;
  }
  if (session != nullptr) free_cells_.erase(session->lease_cell);
  if (freed) free_cells_.insert(*freed);
  store_word(kEndAt, end_);
  return {};
}

/// Writes a record behind the end, where it does not count yet.
Result<void> ManifestLog::write(const ManifestEntry& entry) {
  const std::string payload = std::visit([](const auto& one) { return encode(one); }, entry);
  HO_CHECK(payload.size() <= kRecordBytesMax);
  const std::uint64_t length = payload.size();
  const std::uint64_t place = end_;
  const std::size_t after = align_up(end_ + kFrameBytes + payload.size(), kWordBytes);
  if (after > memory_.size()) return Error(Errc::kExhausted, "the manifest is full");
  const std::uint64_t sum = sum_of(length, place, std::as_bytes(std::span(payload)));
  std::byte* const to = memory_.data() + end_;
  std::memcpy(to, &length, sizeof length);
  std::memcpy(to + 8, &place, sizeof place);
  std::memcpy(to + 16, &sum, sizeof sum);
  std::memcpy(to + kFrameBytes, payload.data(), payload.size());
  end_ = after;
  return {};
}

Result<Kept> ManifestLog::read(std::span<const std::byte> memory) {
  if (memory.size() < kLogAt || load_word(memory, kMagicAt) != kMagic) {
    return Error(Errc::kCorrupt, "not a manifest");
  }
  const auto end = unsealed(load_word(memory, kEndAt));
  const auto alive = unsealed(load_word(memory, kAliveAt));
  if (!end || !alive || *end > memory.size() || *end <= kLogAt) {
    return Error(Errc::kCorrupt, "the manifest's header is damaged, or its memory cut short");
  }
  Kept kept;
  kept.alive = to_time(*alive);
  for (std::size_t at = kLogAt; at < *end;) {
    const Error damaged(Errc::kCorrupt, "the manifest is damaged at byte " + std::to_string(at));
    if (*end - at < kFrameBytes) return damaged;
    const std::uint64_t length = load_word(memory, at);
    if (length > kRecordBytesMax || length > *end - at - kFrameBytes) return damaged;
    const auto payload = memory.subspan(at + kFrameBytes, length);
    const std::uint64_t place = load_word(memory, at + 8);
    if (place != at || load_word(memory, at + 16) != sum_of(length, place, payload)) {
      return damaged;
    }
    const auto entry = decode(payload);
    if (!entry) return entry.error();
    if (auto applied = kept.apply(*entry); !applied) return applied.error();
    at = align_up(at + kFrameBytes + length, kWordBytes);
  }
  std::set<std::uint32_t> cells;
  for (auto& [id, session] : kept.sessions) {
    if (!cells.insert(session.lease_cell).second) return unfit("two sessions share a lease");
    const auto lease = unsealed(load_word(memory, kCellsAt + session.lease_cell * kWordBytes));
    if (!lease) return Error(Errc::kCorrupt, "a lease in the manifest is damaged");
    session.lease_end = to_time(*lease);
  }
  return kept;
}

}  // namespace ho::daemon
