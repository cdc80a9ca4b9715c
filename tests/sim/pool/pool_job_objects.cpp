// Objects that a simulated job publishes or reads, as client/objects/{publisher,subscriber}.
#include <algorithm>
#include <utility>

#include "tests/sim/pool/pool_job.hpp"
#include "tests/sim/pool/pool_job_ask.hpp"

namespace ho::test {
namespace {

using client::Direction;
using std::chrono::milliseconds;

/// What stamps of objects have in place of a storage.
constexpr std::uint32_t kObject = 1'000'000;
constexpr std::size_t kListedMax = 2;
constexpr int kReads = 4;

}  // namespace

void PoolJob::publish_objects() {
  while (!closing_ && !world_.closing()) {
    world_.fibers().sleep(world_.any(milliseconds(20), milliseconds(250)));
    const auto listed = std::count_if(published_.begin(), published_.end(),
                                      [](const Published& one) { return one.listed; });
    if (static_cast<std::size_t>(listed) < kListedMax) {
      static_cast<void>(publish_one());
    } else {
      drop_one(published_[random_.below(published_.size())]);
    }
  }
  wake_all();
}

/// The next version, in memory of an earlier one that is not listed any more.
bool PoolJob::publish_one() {
  std::erase_if(published_,
                [this](const Published& one) { return nodes_[one.node.value()].lost(); });
  auto at = std::find_if(published_.begin(), published_.end(),
                         [](const Published& one) { return !one.listed; });
  if (at == published_.end()) {
    const auto nodes = present();
    if (nodes.empty()) return false;
    const NodeIndex node = nodes[random_.below(nodes.size())];
    const auto arena = grant(kObjectBytes, {node});
    if (!arena) return false;
    Published fresh;
    fresh.node = node;
    fresh.arena = *arena;
    published_.push_back(fresh);
    at = published_.end() - 1;
  }
  Published& one = *at;
  one.id = {"weights", next_object_++, number_ + 1, 0};
  // Versions of two jobs are apart, since a version is of one run.
  one.id.version = one.id.version << 8U | number_;
  const auto write = [&] {
    fill_stamped(object_bytes_, {number_ + 1, kObject, one.id.version});
    return move(Direction::kPut, one.arena->map, 0, object_bytes_, object_handles_).ok();
  };
  const bool early = world_.planted(Planted::kPublishedEarly);
  if (!early && !write()) return false;
  ObjectPart part;
  part.id = one.id;
  part.segments = {one.arena->segments.front().id};
  part.length_bytes = kObjectBytes;
  const Session session = nodes_[one.node.value()].session;
  const auto done = ask_node<bool>(one.node, kControlTimeout,
                                   [session, part](SimDaemon& daemon, const SimReply<bool>& reply) {
                                     daemon.publish(session.id, session.token, part, reply);
                                   });
  // Without an answer it may be listed all the same.
  one.listed = done || done.error().code() != Errc::kNotFound;
  if (early && done) {
    world_.fibers().sleep(milliseconds(100));
    static_cast<void>(write());
  }
  world_.counts().published += done ? 1 : 0;
  return done.ok();
}

/// Its bytes stay as they are until the daemon says that nobody has it open.
void PoolJob::drop_one(Published& one) {
  if (!one.listed) return;
  const Session session = nodes_[one.node.value()].session;
  const ObjectPartId id = one.id;
  const auto done = ask_node<bool>(one.node, kControlTimeout,
                                   [session, id](SimDaemon& daemon, const SimReply<bool>& reply) {
                                     daemon.drop(session.id, session.token, id, reply);
                                   });
  // Not found: the daemon was restarted, and nobody reads by what the last one gave.
  if (done || done.error().code() == Errc::kNotFound) one.listed = false;
}

void PoolJob::read_objects() {
  while (!closing_ && !world_.closing()) {
    world_.fibers().sleep(world_.any(milliseconds(5), milliseconds(80)));
    const auto nodes = present();
    if (!nodes.empty()) read_one(nodes[random_.below(nodes.size())]);
  }
  wake_all();
}

void PoolJob::read_one(NodeIndex node) {
  const auto parts = ask_node<std::vector<ObjectPart>>(
      node, kControlTimeout, [](SimDaemon& daemon, const SimReply<std::vector<ObjectPart>>& reply) {
        reply(daemon.find_parts());
      });
  if (!parts || parts->empty()) return;
  const ObjectPartId id = (*parts)[random_.below(parts->size())].id;
  const Session session = nodes_[node.value()].session;
  const std::uint64_t instance = nodes_[node.value()].control->hello.daemon_instance;
  const auto open = ask<SimDaemon::OpenPart>(
      nodes_[node.value()].control, kControlTimeout,
      [session, id](SimDaemon& daemon, const SimReply<SimDaemon::OpenPart>& reply) {
        daemon.open_part(session.id, session.token, id, reply);
      });
  if (!open || nodes_[node.value()].control->hello.daemon_instance != instance) return;
  read_part(node, id, *open);
  static_cast<void>(
      ask<bool>(nodes_[node.value()].control, kControlTimeout,
                [session, hold = open->hold](SimDaemon& daemon, const SimReply<bool>& reply) {
                  daemon.close_part(session.id, session.token, hold, reply);
                }));
}

/// Reads it several times: it is one version's, however long that takes.
void PoolJob::read_part(NodeIndex node, const ObjectPartId& id, const SimDaemon::OpenPart& open) {
  transport::RegionGrant grant;
  grant.key = open.segment.key;
  grant.length_bytes = open.segment.length_bytes;
  grant.rights = transport::Rights::kRead;
  const auto region = transport_->attach(nodes_[node.value()].peer, std::move(grant));
  if (!region) return;
  region_nodes_[*region] = node;
  shared_read_.emplace();
  shared_read_->node = node;
  shared_read_->segment = open.segment.id;
  shared_read_->map = client::ArenaMap(
      {{0, open.segment.length_bytes, client::DriverIndex(0), node, *region, 0, open.segment.id}});
  for (int i = 0; i < kReads && !shared_read_->stale; ++i) {
    if (i > 0) world_.fibers().sleep(world_.any(Duration{0}, milliseconds(150)));
    if (!move(Direction::kGet, shared_read_->map, 0, object_bytes_, object_handles_)) break;
    world_.counts().object_reads += 1;
    const Stamp stamp{static_cast<std::uint32_t>(id.run), kObject, id.version};
    if (const auto found = check_stamped(object_bytes_, stamp)) wrong("an object: " + *found);
  }
  if (!shared_read_->stale) transport_->detach(*region);
  shared_read_.reset();
}

}  // namespace ho::test
