// Published objects of a simulated daemon: the real directory, and access to segments of others.
#include "tests/sim/pool/sim_daemon.hpp"

namespace ho::test {
namespace {

/// All jobs read and publish versions of one object.
daemon::TenantSpec tenant() { return {"uid 7", "weights", "0123456789abcdef"}; }

}  // namespace

void SimDaemon::publish(SessionId session, const std::string& token, const ObjectPart& part,
                        const SimReply<bool>& reply) {
  if (auto known = pool_.authenticate(session, token); !known) return reply(known.error());
  if (auto done = objects_.publish(session, tenant(), part, world_.now()); !done) {
    return reply(done.error());
  }
  reply(true);
}

void SimDaemon::drop(SessionId session, const std::string& token, const ObjectPartId& id,
                     const SimReply<bool>& reply) {
  if (auto known = pool_.authenticate(session, token); !known) return reply(known.error());
  if (world_.planted(Planted::kHoldForgotten)) {
    for (const auto& [hold, share] : shares_) objects_.close(share.session, {hold});
  }
  if (auto done = objects_.drop(session, tenant(), id); !done) return reply(done.error());
  reply(true);
}

std::vector<ObjectPart> SimDaemon::find_parts() const {
  auto parts = objects_.find(tenant(), 0, UINT64_MAX);
  for (const ObjectPart& part : parts) {
    const daemon::SegmentRecord* const segment = pool_.find(part.segments.front());
    const bool lives = segment != nullptr && machine_.truth.contains(segment->session);
    if (!lives) world_.wrong("a part of an object is found whose session has ended");
  }
  return parts;
}

/// As Grants::share(): until the hold, the reader's session or the segment ends.
void SimDaemon::open_part(SessionId session, const std::string& token, const ObjectPartId& id,
                          const SimReply<OpenPart>& reply) {
  if (auto known = pool_.authenticate(session, token); !known) return reply(known.error());
  const auto opened = objects_.open(session, tenant(), id, 0);
  if (!opened) return reply(opened.error());
  const SegmentId segment = opened->segments.front();
  const auto grant =
      world_.fabric().expose(address_, *machine_.store.at(segment), transport::Rights::kRead);
  shares_[opened->hold] = {session, segment, grant.key};
  reply(OpenPart{opened->hold, {segment, kSimBackedBytes, grant.key, instance_}});
}

void SimDaemon::close_part(SessionId session, const std::string& token, std::uint64_t hold,
                           const SimReply<bool>& reply) {
  if (auto known = pool_.authenticate(session, token); !known) return reply(known.error());
  objects_.close(session, {hold});
  if (const auto share = shares_.find(hold); share != shares_.end()) {
    world_.fabric().revoke(share->second.key);
    shares_.erase(share);
  }
  reply(true);
}

}  // namespace ho::test
