#include "client/objects/subscriber.hpp"

#include <algorithm>
#include <deque>
#include <set>
#include <span>
#include <thread>
#include <tuple>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/log.hpp"

namespace ho::client {

namespace {

/// Between two looks for a version: first short, since a trainer's next version is often near.
constexpr Duration kPauseMin = std::chrono::milliseconds(1);
constexpr Duration kPauseMax = std::chrono::milliseconds(32);

std::string none_of(const std::string& name, const Subscriber::Versions& versions) {
  const std::string min = std::to_string(versions.min);
  if (versions.min == versions.max) {
    return "version " + min + " of " + name + " is gone, or not complete yet";
  }
  return "no version of " + name + " from " + min +
         (versions.max == UINT64_MAX ? " on" : " to " + std::to_string(versions.max)) +
         " is complete";
}

Error ended(const std::string& name) {
  return Error(Errc::kNotFound, name + ": its publisher has ended, or its daemon was restarted");
}

}  // namespace

/// A piece on its way.
struct Subscriber::Fetch {
  const TileRead* tile = nullptr;
  const PieceRead* piece = nullptr;
  std::byte* bytes = nullptr;  ///< where it arrives
};

/// By the checksums of all parts' manifests, which have those of all bytes.
std::uint64_t Subscriber::identity_of(const Version& version) {
  std::vector<std::uint64_t> all{version.front().part.id.run};
  for (const Found& found : version) {
    all.insert(all.end(), found.part.manifest.begin(), found.part.manifest.end());
  }
  return checksum64(std::as_bytes(std::span(all)));
}

Subscriber::Subscriber(Pool& pool, const Options& options, layout::Mesh mesh)
    : pool_(pool), options_(options), reader_mesh_(std::move(mesh)), memory_(pool), bounce_(pool) {}

Subscriber::~Subscriber() {
  release();
  for (auto& [segments, arena] : arenas_) pool_.release(std::move(arena));
}

Result<std::unique_ptr<Subscriber>> Subscriber::create(Pool& pool, const Options& options) {
  HO_CHECK(options.tensors.size() == options.memory.size());
  auto mesh = layout::parse_mesh(options.mesh);
  if (!mesh) return mesh.error();
  if (auto known = position_of(*mesh, options.rank); !known) return known.error();
  std::unique_ptr<Subscriber> made(new Subscriber(pool, options, std::move(*mesh)));
  for (const ObjectMemory& memory : options.memory) {
    if (auto ok = made->memory_.add(memory); !ok) return ok.error();
  }
  return made;
}

Result<std::uint64_t> Subscriber::acquire(const Versions& versions, Duration timeout) {
  release();
  const TimePoint end = clock_.now() + timeout;
  misfit_ = false;
  // A caller that waits in parts, to act on signals, asks the nodes no more often than in one wait.
  const bool goes_on = std::exchange(missed_, std::nullopt) == versions.min;
  for (Duration pause = goes_on ? kPauseMax : kPauseMin;; pause = std::min(2 * pause, kPauseMax)) {
    release_arenas([this](const Arena& arena) { return pool_.is_stale(arena); });
    std::string last;  // why this look did not find one
    Missed missed;
    const auto found = find(versions, missed);
    if (!found) return found.error();
    for (const Version& version : *found) {
      const auto opened = open(version);
      if (opened) return version_;
      release();
      const Errc code = opened.error().code();
      // Dropped meanwhile, or its node is lost: an older one may be there.
      const bool gone = code == Errc::kNotFound || code == Errc::kUnavailable ||
                        code == Errc::kDeadline || code == Errc::kPermissionDenied;
      if (misfit_ || !gone) return opened.error();
      last = opened.error().context();
    }
    if (auto ok = go_on(options_.stop); !ok) return ok.error();
    const TimePoint now = clock_.now();
    if (now >= end) {
      missed_ = versions.min;
      if (last.empty()) last = missed.unanswered;
      const std::string missing = pool_.out_of_reach();
      const bool all = missing.empty() && missed.unanswered.empty();
      return Error(all ? Errc::kNotFound : Errc::kUnavailable,
                   none_of(options_.name, versions) +
                       (missed.incomplete.empty() ? "" : ": " + missed.incomplete) +
                       (last.empty() ? "" : "; last: " + last) +
                       (missing.empty() ? "" : "; not asked: " + missing));
    }
    std::this_thread::sleep_for(std::min<Duration>(pause, end - now));
  }
}

/// Asks the nodes, and lists the versions that are complete, newest first. A version that parts of
/// two programs were published for is left out, since its name does not say which is meant.
Result<std::vector<Subscriber::Version>> Subscriber::find(const Versions& versions,
                                                          Missed& missed) {
  using Key = std::tuple<std::uint64_t, ObjectChecksum, std::uint32_t>;  // run, description, parts
  std::map<std::uint64_t, std::map<Key, std::map<std::uint32_t, Found>>> all;
  Error last(Errc::kUnavailable, "no node of the pool is left");
  bool answered = false;
  using Answer = std::future<Result<std::vector<ObjectPart>>>;
  std::vector<std::pair<std::uint32_t, Answer>> answers;
  for (std::uint32_t i = 0; i < pool_.nodes().size(); ++i) {
    const NodeSession& node = pool_.nodes()[i];
    if (node.fault->reason() != FaultReason::kNone) continue;
    answers.emplace_back(
        i, node.control()->objects_find(node.session, options_.secret, options_.name, versions.min,
                                        versions.max));
  }
  const TimePoint end = clock_.now() + kControlTimeout;
  for (auto& [i, answer] : answers) {
    const NodeSession& node = pool_.nodes()[i];
    auto parts = answer_by(std::move(answer), end);
    if (!parts) {
      last = parts.error().at(node.label);
      missed.unanswered = last.context();
      continue;
    }
    answered = true;
    for (ObjectPart& part : *parts) {
      if (part.id.name != options_.name || part.id.version > versions.max) continue;
      const Key key{part.id.run, part.description, part.parts};
      const std::uint32_t position = part.id.part;
      auto& parts_of = all[part.id.version][key];
      Found found{NodeIndex(i), std::move(part)};
      const auto [at, fresh] = parts_of.emplace(position, found);
      // On two nodes while it leaves one.
      if (!fresh && pool_.is_drained(at->second.node)) at->second = std::move(found);
    }
  }
  if (!answered) return last;
  std::vector<Version> out;
  for (auto version = all.rbegin(); version != all.rend(); ++version) {
    auto& [key, parts] = *version->second.begin();
    const std::uint64_t last_run = std::get<0>(version->second.rbegin()->first);
    std::string lacks;
    if (version->second.size() != 1) {
      lacks = std::get<0>(key) != last_run ? "parts of several runs"
                                           : "parts that differ in mesh, tensors or chunks";
    } else if (parts.size() != std::get<2>(key)) {
      lacks = std::to_string(parts.size()) + " of " + std::to_string(std::get<2>(key)) + " parts";
    }
    if (!lacks.empty()) {
      if (missed.incomplete.empty()) {
        missed.incomplete = "version " + std::to_string(version->first) + " has " + lacks;
      }
      continue;
    }
    Version& complete = out.emplace_back();
    for (auto& [position, found] : parts) complete.push_back(std::move(found));
  }
  return out;
}

Result<void> Subscriber::open(const Version& version) {
  const ObjectPart& first = version.front().part;
  if (description_ != first.description) {
    description_.reset();
    if (auto ok = open_parts(version, {0}); !ok) return ok;
    if (auto ok = plan_by(first); !ok) return ok;
  }
  std::set<std::size_t> needed;
  for (const TileRead& tile : plan_.tiles) needed.insert(tile.position);
  if (needed.empty()) needed.insert(0);  // a rank without bytes, too, finds the version there
  if (auto ok = open_parts(version, needed); !ok) return ok;
  for (const auto& [position, held] : held_) {
    if (auto ok = check_tiles(held, position); !ok) return ok;
  }
  version_ = first.id.version;
  identity_ = identity_of(version);
  const NodeSession& first_node = pool_.nodes()[version.front().node.value()];
  segment_bytes_ = first_node.control()->hello().segment_bytes;
  // A publisher that began anew has other memory.
  release_arenas([this](const Arena& arena) {
    return std::none_of(held_.begin(), held_.end(),
                        [&](const auto& one) { return one.second.arena == &arena; });
  });
  return {};
}

/// Those that `ended` names. No open part lies in them.
template <typename Ended>
void Subscriber::release_arenas(Ended ended) {
  for (auto at = arenas_.begin(); at != arenas_.end();) {
    const bool gone = ended(*at->second);
    if (gone) pool_.release(std::move(at->second));
    at = gone ? arenas_.erase(at) : std::next(at);
  }
}

/// Opens parts, those of all nodes at once, and reads their manifests.
Result<void> Subscriber::open_parts(const Version& version,
                                    const std::set<std::size_t>& positions) {
  std::vector<Found> parts;
  for (const std::size_t position : positions) {
    if (held_.count(position) > 0) continue;
    if (position >= version.size()) return Error(Errc::kCorrupt, "a part too few");
    if (version[position].part.manifest_bytes == 0) {
      return Error(Errc::kCorrupt, "a part without a manifest");
    }
    parts.push_back(version[position]);
  }
  if (parts.empty()) return {};
  if (auto ok = hold(parts); !ok) return ok;
  for (const Found& found : parts) {
    Held& held = held_.at(found.part.id.part);
    const auto arena = attach(found, held.hold);
    if (!arena) return arena.error();
    held.arena = *arena;
  }
  return get_manifests(parts);
}

/// Keeps the parts from being dropped. After a failure, too, those that were opened are held.
Result<void> Subscriber::hold(const std::vector<Found>& parts) {
  std::vector<std::future<Result<OpenObjectPart>>> answers;
  for (const Found& found : parts) {
    const NodeSession& node = pool_.nodes()[found.node.value()];
    ControlClient::ObjectAccess access;
    access.driver = node.driver;
    answers.push_back(
        node.control()->object_open(node.session, options_.secret, found.part.id, access));
  }
  const TimePoint end = clock_.now() + kControlTimeout;
  Result<void> outcome;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto opened = answer_by(std::move(answers[i]), end);
    if (!opened) {
      if (outcome) outcome = opened.error();
      continue;
    }
    Held held;
    held.node = parts[i].node;
    held.hold = opened->hold;
    held.part = parts[i].part;
    held_.emplace(parts[i].part.id.part, std::move(held));
  }
  return outcome;
}

Result<void> Subscriber::get_manifests(const std::vector<Found>& parts) {
  std::uint64_t bytes = 0;
  for (const Found& found : parts) bytes += found.part.manifest_bytes;
  std::vector<std::byte> all(bytes);
  auto handles = pool_.register_memory(all);
  if (!handles) return handles.error();
  Result<void> outcome;
  {
    TransferWindow window(pool_.engine());
    std::byte* to = all.data();
    for (const Found& found : parts) {
      const ObjectPart& part = found.part;
      outcome = window.start(Direction::kGet, held_.at(part.id.part).arena->map,
                             part.offset_bytes + part.manifest_offset_bytes, to,
                             part.manifest_bytes, *handles);
      if (!outcome) break;
      to += part.manifest_bytes;
    }
    while (window.size() > 0) {
      const auto moved = window.wait_first();
      if (outcome) outcome = moved;
    }
  }
  pool_.unregister_memory(*handles);
  std::span<const std::byte> left(all);
  for (const Found& found : parts) {
    if (!outcome) return outcome;
    outcome = take_manifest(found, left.first(found.part.manifest_bytes));
    left = left.subspan(found.part.manifest_bytes);
  }
  return outcome;
}

Result<void> Subscriber::take_manifest(const Found& found, std::span<const std::byte> bytes) {
  if (checksum128(bytes, manifest_seed(found.part.id)) != found.part.manifest) {
    return Error(Errc::kNotFound, options_.name + ": a part's manifest is damaged");
  }
  auto read = read_manifest(bytes);
  if (!read) return read.error().at(options_.name);
  held_.at(found.part.id.part).manifest = std::move(*read);
  return {};
}

/// The part's segments, attached once for all versions that lie in them.
Result<const Arena*> Subscriber::attach(const Found& found, std::uint64_t hold) {
  const Segments key{found.node.value(), found.part.segments};
  const auto known = arenas_.find(key);
  if (known != arenas_.end()) return known->second.get();
  const NodeSession& node = pool_.nodes()[found.node.value()];
  std::vector<GrantedSegment> segments;
  const std::size_t most = segments_per_grant_max(node.driver);
  for (std::size_t at = 0; at < found.part.segments.size(); at += most) {
    ControlClient::ObjectAccess access;
    access.driver = node.driver;
    access.hold = hold;
    const auto begin = found.part.segments.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t count = std::min(most, found.part.segments.size() - at);
    access.segments.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    auto answer = node.control()->object_open(node.session, options_.secret, found.part.id, access);
    auto opened = answer_by(std::move(answer), clock_.now() + kControlTimeout);
    if (!opened) return opened.error();
    for (GrantedSegment& segment : opened->segments) segments.push_back(std::move(segment));
  }
  const std::uint64_t segment_bytes = node.control()->hello().segment_bytes;
  bool same = segments.size() == found.part.segments.size();
  for (std::size_t i = 0; same && i < segments.size(); ++i) {
    same = segments[i].id == found.part.segments[i] && segments[i].length_bytes == segment_bytes;
  }
  if (!same) return ended(options_.name);
  auto arena = pool_.attach_shared(found.node, std::move(segments));
  if (!arena) return arena.error();
  return arenas_.emplace(key, std::move(*arena)).first->second.get();
}

/// By the manifest of the first part, which is open.
Result<void> Subscriber::plan_by(const ObjectPart& part) {
  const ObjectManifest& manifest = held_.at(0).manifest;
  const bool same =
      description_of(manifest.mesh, manifest.tensors, manifest.chunking) == part.description;
  const auto mesh = layout::parse_mesh(manifest.mesh);
  if (!same || !mesh || mesh->ranks.size() != part.parts) {
    return Error(Errc::kCorrupt, options_.name + ": the manifest is not the object's");
  }
  auto plan = plan_read(*mesh, manifest.tensors, manifest.chunking, reader_mesh_, options_.rank,
                        options_.tensors);
  misfit_ = !plan;
  if (!plan) return plan.error().at(options_.name);
  plan_ = std::move(*plan);
  plan_number_ += 1;
  if (options_.own_part) plan_.leave_out(*options_.own_part);
  mesh_ = manifest.mesh;
  tensors_ = manifest.tensors;
  description_ = part.description;
  return {};
}

/// The tiles that the plan reads of a part are in it, with a checksum for each chunk.
Result<void> Subscriber::check_tiles(const Held& held, std::size_t position) const {
  for (const TileRead& tile : plan_.tiles) {
    if (tile.position != position) continue;
    const bool there = tile.tensor < held.manifest.tiles.size();
    const std::uint64_t room = held.part.manifest_offset_bytes;
    if (there && held.manifest.tiles[tile.tensor].checksums.size() == tile.tile_chunks &&
        held.manifest.tiles[tile.tensor].offset_bytes <= room &&
        tile.tile_bytes <= room - held.manifest.tiles[tile.tensor].offset_bytes) {
      continue;
    }
    return Error(Errc::kCorrupt, options_.name + ": a part lacks a tile");
  }
  return {};
}

/// All pieces, those of different nodes in turns, so that all their links are busy.
std::vector<Subscriber::Fetch> Subscriber::in_turns(std::span<const TileRead> tiles) const {
  std::vector<std::vector<Fetch>> by_node(pool_.nodes().size());
  std::size_t longest = 0;
  for (const TileRead& tile : tiles) {
    std::vector<Fetch>& fetches = by_node[held_.at(tile.position).node.value()];
    for (const PieceRead& piece : tile.pieces) fetches.push_back({&tile, &piece, nullptr});
    longest = std::max(longest, fetches.size());
  }
  // Ranks begin with different nodes.
  std::rotate(by_node.begin(),
              by_node.begin() + static_cast<std::ptrdiff_t>(options_.rank % by_node.size()),
              by_node.end());
  std::vector<Fetch> out;
  for (std::size_t i = 0; i < longest; ++i) {
    for (const std::vector<Fetch>& fetches : by_node) {
      if (i < fetches.size()) out.push_back(fetches[i]);
    }
  }
  return out;
}

Result<void> Subscriber::read_tensor(std::size_t wanted) {
  if (wanted >= options_.tensors.size()) {
    return Error(Errc::kOutOfRange, "the reader has no tensor " + std::to_string(wanted));
  }
  const auto index = [](const TileRead& tile) { return tile.wanted; };  // ascending
  const auto begin = std::ranges::lower_bound(plan_.tiles, wanted, {}, index);
  const auto end = std::ranges::upper_bound(plan_.tiles, wanted, {}, index);
  return read_tiles(
      {plan_.tiles.data() + (begin - plan_.tiles.begin()), static_cast<std::size_t>(end - begin)});
}

Result<void> Subscriber::read_tiles(std::span<const TileRead> tiles) {
  if (held_.empty()) return Error(Errc::kConflict, "no version is open");
  std::deque<Fetch> fetches;
  TransferWindow window(pool_.engine(), options_.link_bytes_per_s, options_.stop);
  const auto settle = [&]() -> Result<void> {
    auto moved = window.wait_first();
    const Fetch fetch = fetches.front();
    fetches.pop_front();
    if (!moved) {
      const Errc code = moved.error().code();
      const bool gone = code == Errc::kPermissionDenied || code == Errc::kNotFound;
      return gone ? ended(options_.name) : moved.error();
    }
    return finish(fetch);
  };
  for (const Fetch& next : in_turns(tiles)) {
    if (window.size() == BounceBuffer::kPieces) {
      if (auto ok = settle(); !ok) return ok;
    }
    Fetch& fetch = fetches.emplace_back(next);
    if (auto ok = start(window, fetch); !ok) return ok;
  }
  while (window.size() > 0) {
    if (auto ok = settle(); !ok) return ok;
  }
  return {};
}

Result<void> Subscriber::start(TransferWindow& window, Fetch& fetch) {
  const Held& held = held_.at(fetch.tile->position);
  const ObjectMemory& memory = memory_.at(fetch.tile->wanted);
  const PieceRead& piece = *fetch.piece;
  const std::uint64_t from = held.part.offset_bytes +
                             held.manifest.tiles[fetch.tile->tensor].offset_bytes +
                             piece.begin_bytes;
  const bool direct = piece.destination_bytes.has_value();
  if (!direct) {
    if (auto ok = bounce_.prepare(); !ok) return ok;
  }
  fetch.bytes = direct ? memory.data + *piece.destination_bytes : bounce_.next();
  return window.start(Direction::kGet, held.arena->map, from, fetch.bytes, piece.length_bytes,
                      direct ? *memory.registered : bounce_.handles());
}

Result<void> Subscriber::finish(const Fetch& fetch) {
  const TileRead& tile = *fetch.tile;
  const Held& held = held_.at(tile.position);
  for (std::size_t i = fetch.piece->first_chunk; i < fetch.piece->end_chunk; ++i) {
    const ChunkRead& chunk = tile.chunks[i];
    const std::byte* const bytes = fetch.bytes + (chunk.begin_bytes - fetch.piece->begin_bytes);
    const auto found = checksum128({bytes, chunk.length_bytes},
                                   chunk_seed(held.part.id, tile.tensor, chunk.index));
    if (found != held.manifest.tiles[tile.tensor].checksums[chunk.index]) {
      return Error(Errc::kCorrupt, options_.name + "@" + std::to_string(version_) + ": tensor \"" +
                                       tensors_[tile.tensor].name +
                                       "\" does not have the bytes that were published");
    }
    if (!fetch.piece->destination_bytes) copy(chunk.copies, bytes, memory_.at(tile.wanted).data);
  }
  return {};
}

void Subscriber::release() {
  release_soon();
  for (auto& [index, answer] : closing_) {
    const auto closed = answer_by(std::move(answer), clock_.now() + kControlTimeout);
    const NodeSession& node = pool_.nodes()[index.value()];
    if (closed || node.fault->reason() != FaultReason::kNone) continue;
    log(LogLevel::kWarning, "a version of an object is not let go; the session's end will do it",
        {{"node", node.label}, {"reason", closed.error().message()}});
  }
  closing_.clear();
}

void Subscriber::release_soon() {
  std::map<NodeIndex, std::vector<std::uint64_t>> holds;
  for (const auto& [position, held] : held_) holds[held.node].push_back(held.hold);
  held_.clear();
  for (const auto& [index, list] : holds) {
    const NodeSession& node = pool_.nodes()[index.value()];
    if (node.fault->reason() != FaultReason::kNone) continue;
    closing_.emplace_back(index, node.control()->objects_close(node.session, list));
  }
}

}  // namespace ho::client
