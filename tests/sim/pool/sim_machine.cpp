// How a daemon of the simulation begins, what it leaves, and what it hears of others.
#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "daemon/grant/kept_records.hpp"
#include "tests/sim/pool/sim_daemon.hpp"

namespace ho::test {
namespace {

using daemon::Kept;
using daemon::ManifestLog;

/// Times in the manifest have no finer unit.
constexpr Duration kManifestUnit = std::chrono::milliseconds(1);
constexpr std::uint64_t kCapacitySegments = 96;
/// Small, so that manifests are written anew every now and then.
constexpr std::size_t kManifestWords = 5 * 1024;
constexpr Duration kMembersPeriod = std::chrono::seconds(1);
constexpr Duration kMembersGrace = std::chrono::seconds(15);
constexpr Duration kBookLease = std::chrono::seconds(5);

daemon::Pool::Options pool_options(const SimMachine& machine) {
  daemon::Pool::Options options;
  options.node = machine.id;
  options.node_name = "n" + std::to_string(machine.node);
  options.rack = machine.rack;
  options.capacity_bytes = kCapacitySegments * kSimSegmentBytes;
  options.segment_bytes = kSimSegmentBytes;
  options.lease = kSimLease;
  return options;
}

std::span<std::byte> bytes_of(std::vector<std::uint64_t>& words) {
  return std::as_writable_bytes(std::span(words));
}

}  // namespace

SimMachine::SimMachine(SimWorld& world, std::uint32_t number, std::string in_rack)
    : node(number),
      id(NodeId(static_cast<std::uint16_t>(number + 1))),
      rack(std::move(in_rack)),
      world_(world) {}

SimMachine::~SimMachine() = default;

void SimMachine::start() {
  HO_CHECK(process == nullptr);
  instances += 1;
  process = std::make_unique<SimDaemon>(world_, *this);
  stopped = false;
  try {
    process->take_over();
  } catch (const DaemonKilled&) {
    kill(Left::kKept);
  }
}

void SimMachine::kill(Left left) {
  world_.trace("killed", node, left == Left::kNothing ? 1 : 0);
  cut_append.reset();
  if (process != nullptr) {
    const std::uint64_t instance = process->instance();
    if (!stopped) stood_since = world_.now();
    world_.fabric().kill_peer(process->address());
    process.reset();
    world_.close_all(node, instance);
  }
  stopped = false;
  if (left == Left::kKept) return;
  for (auto& [segment, memory] : store) freed.push_back(memory);
  for (const auto& memory : freed) std::fill(memory->begin(), memory->end(), std::byte{0xdd});
  store.clear();
  manifest.clear();
  truth.clear();
  session_ids.clear();
  segment_ids.clear();
  incarnation = 0;
}

void SimMachine::note_pause() {
  // A stop that is shorter than five periods counts, and of a longer one the period before it.
  constexpr Duration kTick = kSimLease / 40;
  for (auto& [session, known] : truth) {
    const Duration pause = world_.now() - std::max(stood_since, known.renewed);
    known.stood_still += pause;
    known.pauses += 1;
    known.early += pause < 6 * kTick ? pause : 2 * kTick;
  }
}

/// The manifest says what was so before or after the last change.
void SimMachine::check_left(const Kept& kept) {
  const bool unsure = std::exchange(torn, false);
  std::size_t differences = 0;
  for (const auto& [session, known] : truth) {
    const auto found = kept.sessions.find(session);
    if (found == kept.sessions.end()) {
      differences += 1;
      continue;
    }
    // The rest of the lease: time after the last sign of life does not count.
    const Duration ran = stood_since - known.renewed - known.stood_still;
    const Duration left = found->second.lease_end - kept.alive;
    if (left + known.early + kManifestUnit < kSimLease - ran) {
      world_.wrong("a lease in the manifest of n" + std::to_string(node) + " is out of date");
    }
    for (const SegmentId segment : known.segments) {
      differences += kept.segments.contains(segment) ? 0 : 1;
    }
  }
  for (const auto& [session, one] : kept.sessions) differences += truth.contains(session) ? 0 : 1;
  for (const auto& [segment, one] : kept.segments) {
    const auto owner = truth.find(one.session);
    const bool known = owner != truth.end() && owner->second.segments.contains(segment);
    differences += owner == truth.end() || known ? 0 : 1;
  }
  if (differences > (unsure ? 1U : 0U)) {
    world_.wrong("the manifest of n" + std::to_string(node) + " does not say what was so");
  }
  // Whichever of both it was is so from now on.
  std::erase_if(truth, [&](const auto& one) { return !kept.sessions.contains(one.first); });
  for (const auto& [session, one] : kept.sessions) {
    SessionTruth& known = truth[session];
    if (known.token.empty()) known.renewed = world_.now();
    known.token = one.token;
    known.segments.clear();
  }
  for (const auto& [segment, one] : kept.segments) truth.at(one.session).segments.insert(segment);
}

SimDaemon::SimDaemon(SimWorld& world, SimMachine& machine)
    : world_(world),
      machine_(machine),
      instance_(std::uint64_t{machine.node} << 32U | machine.instances),
      address_("n" + std::to_string(machine.node) + "." + std::to_string(machine.instances)),
      pool_(pool_options(machine), world.now()),
      objects_(pool_, instance_ << 16U | 1U),
      members_(std::in_place, kMembersGrace) {
  world_.fabric().add_peer(address_);
}

SimDaemon::~SimDaemon() = default;

/// As keep/inherit and daemon/takeover.
void SimDaemon::take_over() {
  Kept kept;
  if (!machine_.manifest.empty()) {
    auto read = ManifestLog::read(bytes_of(machine_.manifest));
    if (read) {
      kept = std::move(*read);
      machine_.check_left(kept);
      machine_.note_pause();
    } else {
      world_.wrong("the manifest of n" + std::to_string(machine_.node) +
                   " is refused: " + read.error().message());
    }
  }
  if (kept.node.incarnation == 0) {
    machine_.incarnation = world_.random().next() | 1U;
    kept.node.node = machine_.id;
    kept.node.incarnation = machine_.incarnation;
    kept.node.segment_bytes = kSimSegmentBytes;
  }
  for (const auto& [segment, one] : kept.segments) {
    if (!machine_.store.contains(segment)) {
      world_.wrong("a segment in the manifest has no memory");
    }
  }
  std::erase_if(machine_.store, [&](const auto& one) {
    if (kept.segments.contains(one.first)) return false;
    std::fill(one.second->begin(), one.second->end(), std::byte{0xdd});
    machine_.freed.push_back(one.second);
    return true;
  });
  if (!world_.planted(Planted::kIdsGivenAgain)) {
    pool_.skip_ids(kept.node.next_session, kept.node.next_segment);
  }
  for (auto& [id, session] : kept.sessions) {
    const TimePoint end =
        daemon::lease_end_taken_over(session, kept.alive, world_.now(), kSimLease);
    if (!world_.planted(Planted::kTimeWithoutCounts)) session.lease_end = end;
    if (world_.planted(Planted::kLeaseAnewAtTakeover)) session.lease_end = world_.now() + kSimLease;
    HO_CHECK(pool_.adopt(daemon::SessionRecord{session}).ok());
  }
  for (const auto& [id, segment] : kept.segments) {
    HO_CHECK(pool_.adopt(daemon::segment_record(segment)).ok());
    HO_CHECK(pool_.activate(id));
    expose(id, machine_.store.at(id));
  }
  kept.alive = world_.now();
  rewrite(std::move(kept));
  machine_.drained = false;  // the next process does not know of it
  world_.trace("started", machine_.node, pool_.sessions().size());
  check();
  const auto later = [&](Duration after, void (SimDaemon::*act)()) {
    world_.at_daemon(machine_.node, instance_, world_.now() + after,
                     [act](SimDaemon& self) { (self.*act)(); });
  };
  later(pool_.tick_period(), &SimDaemon::tick);
  later(world_.any(Duration{1'000'000}, Duration{50'000'000}), &SimDaemon::look_at_book);
}

/// As Keeper::rewrite().
void SimDaemon::rewrite(Kept state) {
  state.node.generation = ++machine_.generation;
  for (std::size_t words = kManifestWords;; words *= 2) {
    std::vector<std::uint64_t> fresh(words);
    auto log = ManifestLog::create(bytes_of(fresh), state);
    if (!log && log.error().code() == Errc::kExhausted) continue;
    HO_CHECK(log.ok());
    machine_.manifest = std::move(fresh);
    log_ = std::move(*log);
    return;
  }
}

/// As Keeper::append(). Where the process is to be killed meanwhile, its memory has a part of the
/// words that change, in the order in which ManifestLog writes them: the lease's cell, the record,
/// and the log's end last, which lies in front of both.
void SimDaemon::keep(daemon::ManifestEntry entry) {
  if (!log_) return;
  const bool dies = machine_.cut_append.has_value();
  std::vector<std::uint64_t> before;
  if (dies) before = machine_.manifest;
  auto done = log_->append(entry);
  if (!done && done.error().code() == Errc::kExhausted) {
    rewrite(log_->state());
    if (dies) before = machine_.manifest;
    done = log_->append(std::move(entry));
  }
  HO_CHECK(done.ok());
  if (!dies) return;
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] != machine_.manifest[i]) changed.push_back(i);
  }
  if (!world_.planted(Planted::kTornManifest)) {
    std::rotate(changed.begin(), changed.begin() + 1, changed.end());
  }
  const std::size_t written = *machine_.cut_append % (changed.size() + 1);
  for (std::size_t i = 0; i < written; ++i) before[changed[i]] = machine_.manifest[changed[i]];
  log_.reset();
  machine_.manifest = std::move(before);
  machine_.torn = true;
  world_.counts().torn_appends += 1;
  throw DaemonKilled();
}

/// As Membership::run() and look(), once a second.
void SimDaemon::look_at_book() {
  world_.at_daemon(machine_.node, instance_, world_.now() + kMembersPeriod,
                   [](SimDaemon& self) { self.look_at_book(); });
  SimBook& book = world_.book();
  const std::size_t known = members_->others(machine_.id).size();
  if (book.gone) {
    members_->fail(Error(Errc::kUnavailable, "the phone book is gone"), world_.now());
    if (world_.planted(Planted::kListLostWithBook)) members_.emplace(kMembersGrace);
  } else {
    sign_in();
    const auto version = book.stale ? book.old.first : book.version();
    if (members_->is_news(version)) {
      members_->read(version, book.stale ? book.old.second : book.list(), world_.now());
    }
    members_->mend();
  }
  members_->tick(world_.now());
  if (book.gone && members_->others(machine_.id).size() < known) {
    world_.wrong("without the phone book a list of nodes became shorter");
  }
}

void SimDaemon::sign_in() {
  SimBook& book = world_.book();
  const TimePoint now = world_.now();
  std::erase_if(book.renewed, [&](const auto& one) {
    if (now - one.second < kBookLease) return false;
    book.members.erase(one.first);
    book.revision += 1;
    return true;
  });
  book.renewed[machine_.id] = now;
  const auto found = book.members.find(machine_.id);
  if (found != book.members.end() && found->second.instance == instance_) return;
  daemon::Member self;
  self.info = {machine_.id, "n" + std::to_string(machine_.node), {}};
  self.instance = instance_;
  book.members[machine_.id] = self;
  book.revision += 1;
  members_->expect_news();
}

std::vector<daemon::Member> SimBook::list() const {
  std::vector<daemon::Member> out;
  for (const auto& [node, member] : members) out.push_back(member);
  return out;
}

}  // namespace ho::test
