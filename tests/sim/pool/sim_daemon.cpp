// A daemon process of the simulation: requests, and the ends of sessions.
#include "tests/sim/pool/sim_daemon.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.hpp"

namespace ho::test {
namespace {

using daemon::KeptSegment;
using daemon::SegmentEnded;
using daemon::SegmentRecord;
using daemon::SessionEnded;

constexpr std::byte kFreed{0xdd};

std::string token_of(SimWorld& world) {
  std::string token(kSessionTokenBytes, '\0');
  for (char& letter : token) letter = static_cast<char>(world.random().below(256));
  return token;
}

}  // namespace

HelloReply SimDaemon::hello() const {
  HelloReply hello;
  hello.node = machine_.id;
  hello.node_name = "n" + std::to_string(machine_.node);
  hello.boot_id = "machine " + std::to_string(machine_.node);
  hello.rack = machine_.rack;
  hello.daemon_instance = instance_;
  hello.segment_bytes = kSimBackedBytes;
  hello.incarnation = machine_.incarnation;
  hello.resume = std::chrono::duration_cast<std::chrono::milliseconds>(kSimResume);
  return hello;
}

std::vector<NodeInfo> SimDaemon::list_nodes() const {
  auto nodes = members_->others(machine_.id);
  nodes.push_back({machine_.id, "n" + std::to_string(machine_.node), {}});
  return nodes;
}

/// As the Service has it, in what jobs may use of segments.
SimStatus SimDaemon::status() const {
  const std::uint64_t scale = kSimSegmentBytes / kSimBackedBytes;
  return {pool_.options().capacity_bytes / scale, pool_.granted_bytes() / scale,
          !pool_.check_open().ok()};
}

void SimDaemon::open_session(const std::string& job, const SimReply<Session>& reply) {
  daemon::SessionSpec spec;
  spec.name = job;
  spec.token = token_of(world_);
  const auto opened = pool_.open_session(spec, world_.now());
  if (!opened) return reply(opened.error());
  keep(daemon::KeptSession{pool_.sessions().at(*opened)});
  if (!machine_.session_ids.insert(opened->value()).second) {
    world_.wrong("session " + std::to_string(opened->value()) + " of " + hello().node_name +
                 " has a number that was given before");
  }
  SessionTruth truth;
  truth.renewed = world_.now();
  truth.token = spec.token;
  machine_.truth[*opened] = truth;
  const auto lease = std::chrono::duration_cast<std::chrono::milliseconds>(pool_.options().lease);
  reply(Session{*opened, spec.token, lease, address_});
}

/// As Service::renew_lease().
void SimDaemon::renew(SessionId session, const std::string& token,
                      const SimReply<RenewedLease>& reply) {
  if (auto known = pool_.authenticate(session, token); !known) return reply(known.error());
  pool_.renew(session, world_.now());
  if (log_ && !world_.planted(Planted::kRenewalNotKept)) {
    log_->set_lease(session, world_.now() + pool_.options().lease);
  }
  SessionTruth& truth = machine_.truth.at(session);
  truth.renewed = world_.now();
  truth.stood_still = truth.early = {};
  truth.pauses = 0;
  RenewedLease renewed;
  renewed.lease = std::chrono::duration_cast<std::chrono::milliseconds>(pool_.options().lease);
  renewed.drained = pool_.drained();
  reply(renewed);
}

/// As Grants::make(): the memory is made later, and the session may end meanwhile.
void SimDaemon::grant(SessionId session, const std::string& token, std::uint64_t bytes,
                      const SimReply<std::vector<SimGrant>>& reply) {
  if (auto known = pool_.authenticate(session, token); !known) return reply(known.error());
  const std::uint64_t count = (bytes + kSimBackedBytes - 1) / kSimBackedBytes;
  const auto reserved = pool_.reserve(session, count * kSimSegmentBytes, "sim");
  if (!reserved) return reply(reserved.error());
  if (machine_.drained) world_.wrong(hello().node_name + " is drained and grants memory");
  // A busy machine faults a few hundred MB/s in.
  const bool slow = world_.random().below(world_.options().restarts_only ? 2 : 8) == 0;
  const TimePoint made =
      world_.now() + world_.any(Duration{10'000}, Duration{slow ? 900'000'000 : 3'000'000});
  world_.at_daemon(machine_.node, instance_, made,
                   [session, segments = *reserved, reply](SimDaemon& self) {
                     self.make(session, segments, reply);
                   });
}

void SimDaemon::make(SessionId session, const std::vector<SegmentId>& segments,
                     const SimReply<std::vector<SimGrant>>& reply) {
  std::vector<SimGrant> out;
  bool ended = false;
  for (const SegmentId id : segments) {
    auto memory = std::make_shared<SimMemory>(kSimBackedBytes);
    if (world_.planted(Planted::kMemoryGivenAgain) && used_) memory = std::exchange(used_, nullptr);
    const auto written = std::find_if(memory->begin(), memory->end(),
                                      [](std::byte byte) { return byte != std::byte{0}; });
    if (written != memory->end()) world_.wrong("granted memory has bytes of an earlier grant");
    machine_.store[id] = memory;
    ended = !pool_.activate(id) || ended;
    expose(id, memory);
    out.push_back(granted(id));
  }
  if (ended) {
    return end_segments(segments,
                        [reply] { reply(Error(Errc::kNotFound, "the session ended meanwhile")); });
  }
  // Before the answer: a client finds all memory again that it knows of.
  for (const SegmentId id : segments) {
    const SegmentRecord& record = *pool_.find(id);
    KeptSegment kept;
    kept.id = id;
    kept.session = session;
    kept.offset_bytes = record.offset_bytes;
    kept.driver = record.driver;
    if (!world_.planted(Planted::kGrantNotKept)) keep(kept);
    machine_.truth.at(session).segments.insert(id);
    if (!machine_.segment_ids.insert(id.value()).second) {
      world_.wrong("segment " + std::to_string(id.value()) + " of " + hello().node_name +
                   " has a number that was given before");
    }
  }
  check();
  reply(std::move(out));
}

void SimDaemon::release(SessionId session, const std::string& token,
                        const std::vector<SegmentId>& segments, const SimReply<bool>& reply) {
  if (auto known = pool_.authenticate(session, token); !known) return reply(known.error());
  if (auto done = pool_.release(session, segments); !done) return reply(done.error());
  if (world_.planted(Planted::kBytesLeak)) return reply(true);
  end_segments(segments, [reply] { reply(true); });
}

void SimDaemon::close_session(SessionId session, const std::string& token,
                              const SimReply<bool>& reply) {
  if (auto known = pool_.authenticate(session, token); !known) return reply(known.error());
  end_session(session, [reply] { reply(true); });
}

/// As Service::resume().
void SimDaemon::resume(SessionId session, const std::string& token, std::uint64_t incarnation,
                       const SimReply<ResumedSession>& reply) {
  const bool any = world_.planted(Planted::kAnyIncarnation);
  if (incarnation != machine_.incarnation && !any) {
    return reply(Error(Errc::kNotFound, "the daemon was started anew"));
  }
  if (any && pool_.sessions().contains(session)) {
    // A client that names a number gets the session.
  } else if (auto known = pool_.authenticate(session, token); !known) {
    return reply(known.error());
  }
  renew(session, pool_.sessions().at(session).token, [](const Result<RenewedLease>&) {});
  ResumedSession out;
  out.lease = std::chrono::duration_cast<std::chrono::milliseconds>(pool_.options().lease);
  out.address = address_;
  for (const SegmentId id : pool_.sessions().at(session).segments) {
    if (pool_.find(id)->state != SegmentRecord::State::kLive) continue;
    out.segments.push_back({id, kSimBackedBytes, keys_.at(id)});
  }
  reply(std::move(out));
}

void SimDaemon::set_drained(bool drained) {
  if (world_.planted(Planted::kDrainedGives)) return;
  pool_.set_drained(drained ? daemon::Pool::Drained::kYes : daemon::Pool::Drained::kNo);
}

template <typename Ends>
void SimDaemon::end_shares(const Ends& ends) {
  std::erase_if(shares_, [&](const auto& one) {
    if (!ends(one.second)) return false;
    world_.fabric().revoke(one.second.key);
    return true;
  });
}

/// As Grants::close_session().
void SimDaemon::end_session(SessionId session, const std::function<void()>& done) {
  const std::vector<SegmentId> live = pool_.close_session(session);
  if (!world_.planted(Planted::kSessionEndNotKept)) keep(SessionEnded{session});
  machine_.truth.erase(session);
  end_shares([session](const auto& share) { return share.session == session; });
  end_segments(live, done);
}

/// As Grants::end(): the key first, then the memory, and only then the bytes are free.
void SimDaemon::end_segments(const std::vector<SegmentId>& segments,
                             const std::function<void()>& done) {
  std::vector<std::shared_ptr<SimMemory>> memory;
  for (const SegmentId id : segments) {
    const SessionId session = pool_.find(id)->session;
    if (log_ && log_->state().segments.contains(id)) keep(SegmentEnded{id});
    if (const auto truth = machine_.truth.find(session); truth != machine_.truth.end()) {
      truth->second.segments.erase(id);
    }
    if (!world_.planted(Planted::kKeyStays)) world_.fabric().revoke(keys_.at(id));
    keys_.erase(id);
    if (!world_.planted(Planted::kShareStays)) {
      end_shares([id](const auto& share) { return share.segment == id; });
    }
    memory.push_back(machine_.store.at(id));
    if (world_.planted(Planted::kBytesFreeEarly)) pool_.forget(id);
  }
  wiping_ += segments.size();
  const TimePoint wiped = world_.now() + world_.any(Duration{1'000}, Duration{2'000'000});
  world_.at_daemon(machine_.node, instance_, wiped, [segments, memory, done](SimDaemon& self) {
    self.wiping_ -= segments.size();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (self.world_.planted(Planted::kMemoryGivenAgain)) {
        self.used_ = std::make_shared<SimMemory>(*memory[i]);
      }
      std::fill(memory[i]->begin(), memory[i]->end(), kFreed);
      self.machine_.freed.push_back(memory[i]);
      self.machine_.store.erase(segments[i]);
      if (!self.world_.planted(Planted::kBytesFreeEarly)) self.pool_.forget(segments[i]);
    }
    self.check();
    done();
  });
}

void SimDaemon::expose(SegmentId segment, const std::shared_ptr<SimMemory>& memory) {
  keys_[segment] = world_.fabric().expose(address_, *memory, transport::Rights::kReadWrite).key;
}

SimGrant SimDaemon::granted(SegmentId segment) const {
  return {segment, kSimBackedBytes, keys_.at(segment), instance_};
}

std::shared_ptr<SimMemory> SimDaemon::memory(SegmentId segment) const {
  const auto found = machine_.store.find(segment);
  return found == machine_.store.end() ? nullptr : found->second;
}

/// As Service::tick().
void SimDaemon::tick() {
  world_.at_daemon(machine_.node, instance_, world_.now() + pool_.tick_period(),
                   [](SimDaemon& self) { self.tick(); });
  objects_.tick();
  auto lapsed = pool_.tick(world_.now());
  for (const auto& [id, session] : pool_.sessions()) {
    if (!pool_.leases_moved() || world_.planted(Planted::kStopNotKept)) continue;
    if (log_) log_->set_lease(id, session.lease_end);
  }
  if (log_) log_->set_alive(world_.now());
  if (world_.planted(Planted::kLeasesNeverEnd)) lapsed.clear();
  for (const SessionId session : lapsed) {
    world_.counts().lapsed += 1;
    world_.trace("lapsed", machine_.node, session.value());
    check_lapse(session);
    end_session(session, [] {});
  }
  if (world_.planted(Planted::kSessionsEndWithBook) && world_.book().gone) {
    while (!pool_.sessions().empty()) {
      const SessionId session = pool_.sessions().begin()->first;
      pool_.note_end(session, daemon::SessionEnd::kLapsed);
      check_lapse(session);
      end_session(session, [] {});
    }
  }
  for (const auto& [session, truth] : machine_.truth) {
    const Duration ran = world_.now() - truth.renewed - truth.stood_still;
    const Duration latest = kSimLease + (2 + 2 * truth.pauses) * pool_.tick_period();
    if (ran > latest) {
      world_.wrong("session " + std::to_string(session.value()) + " of " + hello().node_name +
                   " lives beyond its lease");
    }
  }
}

void SimDaemon::check_lapse(SessionId session) const {
  const SessionTruth& truth = machine_.truth.at(session);
  const Duration ran = world_.now() - truth.renewed - truth.stood_still;
  const Duration earliest = kSimLease - truth.early - pool_.tick_period();
  if (ran >= earliest) return;
  world_.wrong("session " + std::to_string(session.value()) + " of " + hello().node_name +
               " ended before its lease, " +
               std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(ran).count()) +
               " ms after its last renewal");
}

void SimDaemon::go_on() {
  if (world_.planted(Planted::kStopCounts)) {
    // As if it had run all the time.
    for (TimePoint at = machine_.stood_since; at < world_.now(); at += pool_.tick_period()) {
      for (const SessionId session : pool_.tick(at)) {
        check_lapse(session);
        end_session(session, [] {});
      }
    }
  }
  auto waiting = std::exchange(inbox, {});
  for (const auto& act : waiting) act(*this);
}

void SimDaemon::check() const {
  std::size_t of_sessions = 0;
  std::size_t live = 0;
  std::size_t preparing = 0;
  for (const auto& [id, session] : pool_.sessions()) of_sessions += session.segments.size();
  for (const auto& [id, segment] : pool_.segments()) {
    live += segment.state == SegmentRecord::State::kLive ? 1 : 0;
    preparing += segment.state == SegmentRecord::State::kPreparing ? 1 : 0;
  }
  const std::size_t all = pool_.segments().size();
  if (pool_.granted_bytes() != all * kSimSegmentBytes || live + preparing != of_sessions) {
    world_.wrong("the bytes of " + hello().node_name + " do not add up");
  }
  // Memory that exists, plus what is being made, is what counts as granted.
  if (machine_.store.size() > all || live != keys_.size()) {
    world_.wrong(hello().node_name + " has memory that does not count as granted");
  }
}

}  // namespace ho::test
