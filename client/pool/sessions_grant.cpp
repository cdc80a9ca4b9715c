#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "client/pool/on_threads.hpp"
#include "client/pool/sessions.hpp"
#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

using std::chrono::milliseconds;

/// For one node's status, however many others have used up the time.
constexpr Duration kStatusTimeoutMin = milliseconds(250);
/// For a request that must reach a node which did not answer last time.
constexpr Duration kSilentTimeout = milliseconds(50);
/// Daemons fault granted memory in; a loaded machine does it at a few hundred MB/s.
constexpr std::uint64_t kGrantBytesPerMs = 50'000;

/// Whether another node may serve the request after this error.
bool gives_nothing(const Error& error) {
  return error.code() == Errc::kExhausted || error.code() == Errc::kUnavailable;
}

}  // namespace

/// Asks within one request's time for all: however many are stopped, the rest are heard. Those that
/// did not answer last time come after all others, and are not asked any more once the time is up.
std::vector<Result<NodeStatus>> Sessions::status_of(const std::vector<NodeIndex>& candidates) {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](std::size_t i) {
    return !nodes_[candidates[i].value()].fault->silent();
  });
  std::vector<Result<NodeStatus>> answers(candidates.size(), Error(Errc::kDeadline, ""));
  const TimePoint end = clock_.now() + kControlTimeout;
  each_on_threads(order.size(), [&](std::size_t i) {
    const NodeSession& node = nodes_[candidates[order[i]].value()];
    const TimePoint now = clock_.now();
    if (now >= end && node.fault->silent()) return;
    const std::size_t rounds = (order.size() - i - 1) / kThreadsAtOnce + 1;
    const Duration share = (end - now) / static_cast<std::int64_t>(rounds);
    auto& answer = answers[order[i]];
    answer = ask(node, [&](ControlClient& control) {
      return control.status(clock_.now() + std::max<Duration>(share, kStatusTimeoutMin));
    });
    if (answer) {
      node.fault->mark_answering();
    } else if (answer.error().code() == Errc::kDeadline) {
      node.fault->mark_silent();
    }
  });
  return answers;
}

Rooms Sessions::rooms_of(const std::vector<NodeIndex>& candidates) {
  const auto answers = status_of(candidates);
  Rooms rooms;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const NodeSession& node = nodes_[candidates[i].value()];
    const auto& status = answers[i];
    NodeRoom room{candidates[i], node.control()->hello().node_name,
                  node.control()->hello().segment_bytes, 0, 0};
    FlashRoom flash{room.node, room.name, 0, 0};
    if (!status) {
      room.name += " [" + std::string(errc_name(status.error().code())) + "]";
    } else {
      room.capacity_bytes = status->ddr_capacity_bytes;
      for (const FlashPathStatus& path : status->flash) flash.capacity_bytes += path.capacity_bytes;
    }
    if (status && status->draining) {
      room.name += " [draining]";
      flash.name = room.name;
    } else if (status) {
      room.free_bytes =
          room.capacity_bytes - std::min(room.capacity_bytes, status->ddr_granted_bytes);
      flash.free_bytes = usable_flash_bytes(status->flash);
    }
    if (status && !status->flash.empty()) rooms.flash.push_back(std::move(flash));
    if (room.segment_bytes > 0) rooms.ddr.push_back(std::move(room));
  }
  return rooms;
}

/// The candidates without `full`, in the order in which they are asked: those that hold parts, then
/// all by their ids from the job's own node on, those that did not answer last time at the end. So
/// jobs that lie on one node share most of their others, and the loss of two nodes ends few of
/// them.
std::vector<NodeIndex> Sessions::ring_of(const std::vector<NodeIndex>& candidates,
                                         std::span<const StagingPart> parts,
                                         const std::set<NodeIndex>& full) const {
  std::vector<NodeIndex> ring;
  for (const NodeIndex node : candidates) {
    const bool gone = nodes_[node.value()].fault->reason() != FaultReason::kNone;
    if (!gone && !full.contains(node)) ring.push_back(node);
  }
  const auto id = [this](NodeIndex i) { return nodes_[i.value()].control()->hello().node; };
  if (ring.size() > kArenaNodesMin) {
    std::sort(ring.begin(), ring.end(), [&](NodeIndex a, NodeIndex b) { return id(a) < id(b); });
    const auto own = std::find_if(ring.begin(), ring.end(),
                                  [&](NodeIndex node) { return !(id(node) < ring_begin_); });
    std::rotate(ring.begin(), own, ring.end());
    std::stable_partition(ring.begin(), ring.end(),
                          [this](NodeIndex node) { return !nodes_[node.value()].fault->silent(); });
  }
  std::stable_partition(ring.begin(), ring.end(), [&](NodeIndex node) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const StagingPart& part) { return part.node == node; });
  });
  return ring;
}

Result<HeldArena> Sessions::grant(const ArenaSpec& spec, const std::vector<NodeIndex>& candidates) {
  if (candidates.empty()) return lost();
  std::set<NodeIndex> full;
  std::optional<Error> refusal;
  for (;;) {
    const auto ring = ring_of(candidates, spec.parts, full);
    if (ring.empty() && full.empty()) return lost();
    const auto rooms =
        nodes_of_arena(spec.bytes, spec.parts, ring,
                       [this](const std::vector<NodeIndex>& some) { return rooms_of(some).ddr; });
    const auto stripes = plan_spread(spec.bytes, rooms, spec.parts);
    if (!stripes && !refusal) return stripes.error();
    if (!stripes) {
      const bool all_gone = refusal->code() == Errc::kUnavailable;
      if (all_gone && stripes.error().code() == Errc::kUnavailable) return *refusal;
      break;
    }
    const std::size_t refused = full.size();
    auto held = take(*stripes, rooms, spec, full);
    // Try other nodes: these are full, over the user's quota, or lost.
    if (held || !gives_nothing(held.error()) || full.size() == refused) return held;
    if (!refusal || refusal->code() == Errc::kUnavailable) refusal = held.error();
  }
  // The node's own words first: it may be a quota, or memory that its machine does not have.
  return Error(Errc::kExhausted, refusal->context() + "; the job " +
                                     describe_shortage(spec.bytes, rooms_of(candidates).ddr));
}

/// The error for a job that has lost all its nodes.
Error Sessions::lost() const {
  std::string nodes;
  for (const NodeSession& node : nodes_) {
    if (node.fault->reason() == FaultReason::kNone) continue;
    nodes += (nodes.empty() ? ": lost " : "; ") + node.label + ": " + node.fault->words();
  }
  return {Errc::kUnavailable, "no node of the pool is in reach" + nodes};
}

/// What a node is asked for.
struct Sessions::Wanted {
  NodeIndex node;
  std::uint64_t bytes = 0;
  GrantSpec spec;
};

std::vector<Sessions::Wanted> Sessions::wanted(const std::vector<Stripe>& stripes,
                                               const std::vector<NodeRoom>& rooms,
                                               std::optional<NumaNode> numa) const {
  std::vector<Wanted> out;
  for (const NodeRoom& room : rooms) {
    const NodeSession& node = nodes_[room.node.value()];
    Wanted one{room.node, 0, {}};
    for (const Stripe& stripe : stripes) {
      one.bytes += stripe.node == room.node ? stripe.length_bytes : 0;
    }
    if (one.bytes == 0) continue;
    one.spec.bytes = align_up(one.bytes, room.segment_bytes);
    one.spec.driver = node.driver;
    // Another machine's nodes have other numbers, and what is near there is its network device.
    if (node.driver == "local") one.spec.near = numa;
    out.push_back(std::move(one));
  }
  return out;
}

/// One request a node; its segments are filled with its stripes one after the other.
/// @param full  gets the nodes that have no room, whatever they said before, or are lost
Result<HeldArena> Sessions::take(const std::vector<Stripe>& stripes,
                                 const std::vector<NodeRoom>& rooms, const ArenaSpec& arena,
                                 std::set<NodeIndex>& full) {
  HeldArena held;
  std::vector<std::size_t> first(nodes_.size(), 0);  // index of each node's first segment
  const std::vector<Wanted> asked = wanted(stripes, rooms, arena.numa);
  std::vector<Result<std::vector<GrantedSegment>>> answers;
  while (answers.size() < asked.size()) answers.emplace_back(Error(Errc::kCanceled, ""));
  std::vector<std::uint64_t> instances(asked.size(), 0);
  each_on_threads(asked.size(), [&](std::size_t i) {
    const NodeSession& node = nodes_[asked[i].node.value()];
    const Duration timeout = kControlTimeout + milliseconds(asked[i].spec.bytes / kGrantBytesPerMs);
    // What a daemon may have granted before it ended is freed with the session.
    answers[i] = ask(node, [&](ControlClient& control) {
      instances[i] = control.hello().daemon_instance;
      return control.grant(node.session, asked[i].spec, clock_.now() + timeout);
    });
  });
  std::optional<Error> failure;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const NodeSession& node = nodes_[asked[i].node.value()];
    if (!answers[i]) {
      const Error error = without_session(node, answers[i].error());
      if (gives_nothing(error)) full.insert(asked[i].node);
      // Report any other error rather than a lost node.
      if (!failure || failure->code() == Errc::kUnavailable) failure = error.at(node.label);
      continue;
    }
    first[asked[i].node.value()] = held.segments.size();
    std::uint64_t granted = 0;
    for (GrantedSegment& segment : *answers[i]) {
      granted += segment.length_bytes;
      held.segments.push_back({asked[i].node, std::move(segment), instances[i]});
    }
    if (granted < asked[i].bytes && !failure) {
      failure.emplace(Errc::kCorrupt, node.label + " granted less than was asked for");
    }
  }
  if (failure) {
    release(held.segments);
    return *failure;
  }
  std::vector<std::uint64_t> used(held.segments.size(), 0);
  for (const Stripe& stripe : stripes) {
    std::size_t& segment = first[stripe.node.value()];
    for (std::uint64_t left = stripe.length_bytes; left > 0;) {
      HO_CHECK(segment < held.segments.size());
      const std::uint64_t room = held.segments[segment].segment.length_bytes - used[segment];
      const std::uint64_t length = std::min(left, room);
      if (length > 0) held.stretches.push_back({segment, used[segment], length});
      used[segment] += length;
      left -= length;
      if (left > 0) segment += 1;
    }
  }
  return held;
}

void Sessions::release(const std::vector<HeldSegment>& segments) {
  std::map<std::uint32_t, std::vector<SegmentId>> by_node;
  for (const HeldSegment& held : segments) {
    if (nodes_[held.node.value()].fault->reason() != FaultReason::kNone) continue;
    by_node[held.node.value()].push_back(held.segment.id);
  }
  const std::vector<std::pair<std::uint32_t, std::vector<SegmentId>>> all(by_node.begin(),
                                                                          by_node.end());
  each_on_threads(all.size(), [&](std::size_t i) {
    const auto& [index, ids] = all[i];
    const NodeSession& node = nodes_[index];
    // A daemon that is stopped reads it when it goes on; nobody waits for it a second time.
    const Duration timeout = node.fault->silent() ? kSilentTimeout : kControlTimeout;
    const auto done = ask(node, [&, &ids = ids](ControlClient& control) {
      return control.release(node.session, ids, clock_.now() + timeout);
    });
    if (!done) {
      if (done.error().code() == Errc::kDeadline) node.fault->mark_silent();
      log(LogLevel::kWarning, "segments not released yet; the session's end will free them",
          {{"node", node.label}, {"reason", done.error().message()}});
    }
  });
}

}  // namespace ho::client
