// Pool memory of a simulated job: grants over several nodes, and plain moves.
#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "tests/sim/pool/pool_job.hpp"
#include "tests/sim/pool/pool_job_ask.hpp"

namespace ho::test {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kCopyBytes = 16 * 1024;

}  // namespace

/// As Sessions::grant(), the ring apart: nodes are asked in the order of `from`.
Result<PoolJob::Arena*> PoolJob::grant(std::uint64_t bytes, const std::vector<NodeIndex>& from,
                                       std::span<const client::StagingPart> parts) {
  constexpr int kRestarts = 2;
  int restarts = 0;
  std::set<NodeIndex> full;
  for (;;) {
    std::vector<NodeIndex> ring;
    for (const NodeIndex node : from) {
      if (!full.contains(node)) ring.push_back(node);
    }
    if (ring.empty()) return Error(Errc::kExhausted, "no node has room");
    const auto rooms = client::nodes_of_arena(
        bytes, parts, ring, [this](const std::vector<NodeIndex>& some) { return rooms_of(some); });
    const auto stripes = client::plan_spread(bytes, rooms, parts);
    if (!stripes) return stripes.error();
    const std::size_t refused = full.size();
    auto taken = take(*stripes, full);
    if (!taken && taken.error().code() == Errc::kConflict && restarts++ < kRestarts) continue;
    if (taken || taken.error().code() != Errc::kExhausted || full.size() == refused) return taken;
  }
}

/// By way of the bounce memory; one thread of the job at a time.
Result<void> PoolJob::move_now(client::Direction direction, const client::ArenaMap& map,
                               std::uint64_t offset, std::span<std::byte> memory,
                               Duration late_after) {
  HO_CHECK(memory.size() <= bounce_.size());
  const bool put = direction == client::Direction::kPut;
  const auto bounce = std::span(bounce_).first(memory.size());
  if (put) std::copy(memory.begin(), memory.end(), bounce.begin());
  auto done = move(direction, map, offset, bounce, bounce_handles_, late_after);
  if (done && !put) std::copy(bounce.begin(), bounce.end(), memory.begin());
  return done;
}

/// As Pool::move_registered().
Result<void> PoolJob::move(client::Direction direction, const client::ArenaMap& map,
                           std::uint64_t offset, std::span<std::byte> memory,
                           const client::LocalHandles& handles, Duration late_after) {
  client::Transfer transfer;
  transfer.owner = 0;
  transfer.cookie = next_ticket_++;
  transfer.direction = direction;
  transfer.arena = &map;
  transfer.arena_offset_bytes = offset;
  transfer.memory = memory.data();
  transfer.bytes = memory.size();
  transfer.local = handles;
  transfer.late_after = late_after;
  tickets_[transfer.cookie].foreign = shared_read_ && &map == &shared_read_->map;
  HO_CHECK(mover_->start(transfer).ok());
  kick(world_.now());
  world_.fibers().wait_until([&] { return tickets_[transfer.cookie].done; }, TimePoint::max());
  const Errc code = tickets_[transfer.cookie].code;
  tickets_.erase(transfer.cookie);
  if (code != Errc::kOk) return Error(code, "a transfer failed");
  return {};
}

/// As Pool::copy().
Result<void> PoolJob::copy(const client::HomePlace& from, const client::HomePlace& to,
                           std::uint64_t bytes) {
  std::vector<std::byte> part;
  for (std::uint64_t at = 0; at < bytes; at += part.size()) {
    part.resize(std::min(kCopyBytes, bytes - at));
    auto ok = move_now(client::Direction::kGet, *from.area->map, from.offset_bytes[0] + at, part);
    if (ok) ok = move_now(client::Direction::kPut, *to.area->map, to.offset_bytes[0] + at, part);
    if (!ok) return ok;
  }
  return {};
}

std::vector<client::NodeRoom> PoolJob::rooms_of(const std::vector<NodeIndex>& nodes) {
  std::vector<client::NodeRoom> rooms(nodes.size());
  at_once(nodes.size(), [&](std::size_t i) {
    const auto answer = ask_node<SimStatus>(
        nodes[i], milliseconds(300),
        [](SimDaemon& daemon, const SimReply<SimStatus>& reply) { reply(daemon.status()); });
    const Node& node = nodes_[nodes[i].value()];
    rooms[i] = {nodes[i], "n" + std::to_string(node.machine), kSimBackedBytes, 0};
    if (answer) node.fault->mark_answering();
    if (!answer && answer.error().code() == Errc::kDeadline) node.fault->mark_silent();
    if (!answer || answer->draining) return;
    rooms[i].free_bytes = answer->capacity_bytes - answer->granted_bytes;
  });
  return rooms;
}

/// As Sessions::take(): all or nothing.
Result<PoolJob::Arena*> PoolJob::take(const std::vector<client::Stripe>& stripes,
                                      std::set<NodeIndex>& full) {
  std::map<std::uint32_t, std::uint64_t> wanted;
  std::map<std::uint32_t, std::uint64_t> in_last;
  for (const client::Stripe& stripe : stripes) wanted[stripe.node.value()] += stripe.length_bytes;
  const std::vector<std::pair<std::uint32_t, std::uint64_t>> asked(wanted.begin(), wanted.end());
  std::vector<Result<std::vector<SimGrant>>> answers(asked.size(), Error(Errc::kCanceled, ""));
  at_once(asked.size(), [&](std::size_t i) {
    const Session session = nodes_[asked[i].first].session;
    const std::uint64_t bytes = asked[i].second;
    answers[i] = ask_node<std::vector<SimGrant>>(
        NodeIndex(asked[i].first), kControlTimeout,
        [session, bytes](SimDaemon& daemon, const SimReply<std::vector<SimGrant>>& reply) {
          daemon.grant(session.id, session.token, bytes, reply);
        });
    world_.bad_moment();
  });
  auto arena = std::make_unique<Arena>();
  std::map<std::uint32_t, std::size_t> first;
  std::optional<Error> failure;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const NodeIndex node(asked[i].first);
    if (!answers[i]) {
      if (answers[i].error().code() == Errc::kExhausted) full.insert(node);
      if (!failure) failure = answers[i].error();
      continue;
    }
    first[asked[i].first] = arena->segments.size();
    // As Pool::keys_ended(): the daemon was restarted meanwhile, and has given new keys.
    const Node& there = nodes_[asked[i].first];
    const bool gone = there.fault->resumable() && there.control->closed;
    const bool ended = gone || answers[i]->front().instance != there.instance;
    if (ended && !failure && !world_.planted(Planted::kEndedKeysAttached)) {
      failure = Error(Errc::kConflict, "a daemon was restarted while its memory was granted");
    }
    for (const SimGrant& one : *answers[i]) {
      transport::RegionGrant grant;
      grant.key = one.key;
      grant.length_bytes = one.length_bytes;
      const auto region = transport_->attach(nodes_[node.value()].peer, std::move(grant));
      if (!region && !failure) failure = region.error();
      arena->segments.push_back({node, one.id, one.length_bytes});
      arena->regions.push_back(region ? *region : transport::RegionId());
      if (region) region_nodes_[*region] = node;
    }
  }
  Arena* const made = arena.get();
  arenas_.push_back(std::move(arena));
  if (failure) {
    release(made);
    return *failure;
  }
  std::vector<client::ArenaExtent> extents;
  std::vector<std::uint64_t> used(made->segments.size(), 0);
  std::uint64_t at = 0;
  for (const client::Stripe& stripe : stripes) {
    for (std::uint64_t left = stripe.length_bytes; left > 0;) {
      std::size_t& segment = first[stripe.node.value()];
      const std::uint64_t length = std::min(left, kSimBackedBytes - used[segment]);
      if (length > 0) {
        extents.push_back({at, length, client::DriverIndex(0), stripe.node, made->regions[segment],
                           used[segment], made->segments[segment].id});
      }
      used[segment] += length;
      at += length;
      left -= length;
      if (left > 0) segment += 1;
    }
  }
  made->map = client::ArenaMap(std::move(extents));
  made->area = {&made->map, 0, made->map.bytes()};
  return made;
}

void PoolJob::release(Arena* arena) {
  std::map<std::uint32_t, std::vector<SegmentId>> by_node;
  for (std::size_t i = 0; i < arena->segments.size(); ++i) {
    by_node[arena->segments[i].node.value()].push_back(arena->segments[i].id);
    if (arena->regions[i] != transport::RegionId()) transport_->detach(arena->regions[i]);
  }
  std::erase_if(arenas_, [&](const auto& one) { return one.get() == arena; });
  for (const auto& [index, ids] : by_node) {
    const Node& node = nodes_[index];
    if (node.lost()) continue;
    const Session session = node.session;
    const Duration timeout = node.fault->silent() ? milliseconds(50) : kControlTimeout;
    const auto done = ask_node<bool>(NodeIndex(index), timeout,
                                     [session, ids = ids](SimDaemon& daemon, SimReply<bool> reply) {
                                       daemon.release(session.id, session.token, ids, reply);
                                     });
    if (!done && done.error().code() == Errc::kDeadline) node.fault->mark_silent();
  }
}

}  // namespace ho::test
