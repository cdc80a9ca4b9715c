#include "daemon/pool/pool.hpp"

#include <catch2/catch.hpp>
#include <iterator>
#include <optional>
#include <set>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"

namespace ho::daemon {

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr std::uint64_t kSegment = 2 * kMiB;

Pool make_pool(TimePoint now, std::uint64_t segments = 8, milliseconds lease = 1000ms) {
  Pool::Options options;
  options.node = NodeId(5);
  options.node_name = "n5";
  options.capacity_bytes = segments * kSegment;
  options.segment_bytes = kSegment;
  options.lease = lease;
  options.sessions_max = 4;
  return Pool(options, now);
}

SessionId open(Pool& pool, TimePoint now, const std::string& token = "0123456789abcdef") {
  SessionSpec spec;
  spec.name = "job";
  spec.token = token;
  auto session = pool.open_session(std::move(spec), now);
  REQUIRE(session.ok());
  return *session;
}

std::vector<SegmentId> grant(Pool& pool, SessionId session, std::uint64_t bytes) {
  auto segments = pool.reserve(session, bytes, "local");
  REQUIRE(segments.ok());
  for (const SegmentId id : *segments) REQUIRE(pool.activate(id));
  return *segments;
}

}  // namespace

TEST_CASE("pool: bytes count as granted until their memory is freed") {
  const TimePoint start{};
  Pool pool = make_pool(start);
  const SessionId session = open(pool, start);
  const auto segments = grant(pool, session, 3 * kSegment - 1);
  CHECK(segments.size() == 3);
  CHECK(pool.granted_bytes() == 3 * kSegment);
  REQUIRE(pool.release(session, {segments[0]}).ok());
  CHECK(pool.granted_bytes(session) == 2 * kSegment);
  CHECK(pool.granted_bytes() == 3 * kSegment);
  pool.forget(segments[0]);
  CHECK(pool.granted_bytes() == 2 * kSegment);
}

TEST_CASE("pool: a request beyond the free bytes changes nothing and reports the numbers") {
  const TimePoint start{};
  Pool pool = make_pool(start);
  const SessionId session = open(pool, start);
  grant(pool, session, 7 * kSegment);
  for (const std::uint64_t bytes : {kSegment + 1, 8 * kSegment, UINT64_MAX}) {
    const auto refused = pool.reserve(session, bytes, "local");
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kExhausted);
    CHECK(refused.error().context().find("pool has 2.00 MiB on nodes n5") != std::string::npos);
  }
  CHECK(pool.granted_bytes() == 7 * kSegment);
  CHECK(pool.reserve(session, 0, "local").error().code() == Errc::kInvalidArgument);
}

TEST_CASE("pool: a lease ends after its time, and not before, unless renewed") {
  TimePoint now{};
  Pool pool = make_pool(now);
  const SessionId kept = open(pool, now);
  const SessionId lost = open(pool, now);
  std::vector<SessionId> lapsed;
  milliseconds when{0};
  while (lapsed.empty() && when < milliseconds(5000)) {
    now += pool.tick_period();
    when += milliseconds(50);
    pool.renew(kept, now);
    lapsed = pool.tick(now);
  }
  CHECK(lapsed == std::vector<SessionId>{lost});
  static_cast<void>(pool.close_session(lost));
  const auto late = pool.authenticate(lost, "t");
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code() == Errc::kNotFound);
  CHECK(late.error().context().find("the session's lease lapsed") != std::string::npos);
  CHECK(when == milliseconds(1000));
}

TEST_CASE("pool: time without ticks does not count against leases") {
  TimePoint now{};
  Pool pool = make_pool(now);
  const SessionId session = open(pool, now);
  now += milliseconds(60'000);
  CHECK(pool.tick(now).empty());
  for (int i = 0; i < 18; ++i) CHECK(pool.tick(now += pool.tick_period()).empty());
  CHECK(pool.tick(now += milliseconds(100)) == std::vector<SessionId>{session});
}

TEST_CASE(
    "pool: the time of a stop is added once, also for a session renewed before the first tick") {
  const TimePoint start{};
  Pool pool = make_pool(start);
  const SessionId renewed = open(pool, start);
  const SessionId silent = open(pool, start);
  REQUIRE(pool.tick(start + milliseconds(50)).empty());
  const TimePoint resumed = start + milliseconds(50'000);
  pool.renew(renewed, resumed);
  REQUIRE(pool.tick(resumed).empty());
  CHECK(pool.sessions().at(renewed).lease_end == resumed + milliseconds(1000));
  CHECK(pool.sessions().at(silent).lease_end <= resumed + milliseconds(1000));
  CHECK(pool.sessions().at(silent).lease_end > resumed);
  CHECK(pool.leases_moved());
  REQUIRE(pool.tick(resumed + milliseconds(50)).empty());
  CHECK_FALSE(pool.leases_moved());
}

TEST_CASE("pool: a tick that is late by four periods or more counts as a stop") {
  struct Case {
    milliseconds lease;
    milliseconds period;
  };
  for (const auto& [lease, period] :
       {Case{10'000ms, 250ms}, Case{4000ms, 100ms}, Case{1000ms, 50ms}, Case{60'000ms, 250ms}}) {
    INFO("lease of " << lease.count() << " ms");
    const TimePoint start{};
    Pool pool = make_pool(start, 8, lease);
    REQUIRE(pool.tick_period() == period);
    const SessionId session = open(pool, start);
    const auto lease_end = [&] { return pool.sessions().at(session).lease_end; };
    TimePoint now = start + period + 4 * period - 1ms;
    REQUIRE(pool.tick(now).empty());
    CHECK(lease_end() == start + lease);
    now += period + 4 * period;
    REQUIRE(pool.tick(now).empty());
    CHECK(lease_end() == start + lease + 4 * period);
  }
}

TEST_CASE("pool: a tick that was due before draining began is not late") {
  const TimePoint start{};
  Pool pool = make_pool(start, 8, 10'000ms);
  const SessionId session = open(pool, start);
  const auto lease_end = [&] { return pool.sessions().at(session).lease_end; };
  pool.start_draining();
  REQUIRE(pool.tick_period() == 50ms);
  TimePoint now = start + 250ms;
  REQUIRE(pool.tick(now).empty());
  CHECK(lease_end() == start + 10'000ms);
  now += 50ms + 199ms;
  REQUIRE(pool.tick(now).empty());
  CHECK(lease_end() == start + 10'000ms);
  now += 50ms + 200ms;
  REQUIRE(pool.tick(now).empty());
  CHECK(lease_end() == start + 10'200ms);
}

TEST_CASE("pool: a session that ends while its memory is made leaves nothing behind") {
  const TimePoint start{};
  Pool pool = make_pool(start);
  const SessionId session = open(pool, start);
  const auto live = grant(pool, session, kSegment);
  auto making = pool.reserve(session, 2 * kSegment, "ofi");
  REQUIRE(making.ok());
  CHECK(pool.close_session(session) == live);
  CHECK_FALSE(pool.activate(making->front()));
  pool.abandon(making->back());
  for (const SegmentId id : live) pool.forget(id);
  for (const SegmentId id : *making) pool.forget(id);
  CHECK(pool.granted_bytes() == 0);
  CHECK(pool.authenticate(session, "0123456789abcdef").error().code() == Errc::kNotFound);
}

TEST_CASE("pool: a session cannot release segments of others, unknown ones, or one twice") {
  const TimePoint start{};
  Pool pool = make_pool(start);
  const SessionId mine = open(pool, start, "mine------------");
  const SessionId other = open(pool, start, "other-----------");
  const auto segments = grant(pool, mine, 2 * kSegment);
  CHECK(pool.release(other, {segments[0]}).error().code() == Errc::kNotFound);
  CHECK(pool.release(mine, {segments[0], segments[0]}).error().code() == Errc::kNotFound);
  CHECK(pool.release(mine, {segments[0], SegmentId(999)}).error().code() == Errc::kNotFound);
  CHECK(pool.granted_bytes(mine) == 2 * kSegment);
  CHECK(pool.authenticate(mine, "other-----------").error().code() == Errc::kPermissionDenied);
  CHECK(pool.authenticate(mine, "mine").error().code() == Errc::kPermissionDenied);
  CHECK(pool.authenticate(mine, "mine------------").ok());
}

TEST_CASE("pool: draining and the session limit refuse new work") {
  const TimePoint start{};
  Pool pool = make_pool(start);
  const SessionId session = open(pool, start);
  for (int i = 0; i < 3; ++i) open(pool, start);
  SessionSpec spec;
  spec.token = "t";
  CHECK(pool.open_session(spec, start).error().code() == Errc::kExhausted);
  pool.start_draining();
  CHECK(pool.open_session(spec, start).error().code() == Errc::kUnavailable);
  CHECK(pool.reserve(session, kSegment, "local").error().code() == Errc::kUnavailable);
}

TEST_CASE("pool: a drained node gives nothing new out, keeps what it gave, and can be taken back") {
  const TimePoint start{};
  Pool pool = make_pool(start);
  const SessionId session = open(pool, start);
  REQUIRE(pool.reserve(session, kSegment, "local").ok());
  pool.set_drained(Pool::Drained::kYes);
  CHECK(pool.check_open().error().code() == Errc::kUnavailable);
  SessionSpec spec;
  spec.token = "t";
  CHECK(pool.open_session(spec, start).error().code() == Errc::kUnavailable);
  CHECK(pool.reserve(session, kSegment, "local").error().code() == Errc::kUnavailable);
  CHECK(pool.granted_bytes(session) == kSegment);
  CHECK_FALSE(pool.draining());
  pool.set_drained(Pool::Drained::kNo);
  CHECK(pool.open_session(spec, start).ok());
  CHECK(pool.reserve(session, kSegment, "local").ok());
}

TEST_CASE("pool: whatever happens, live segments never share an address and ids never return") {
  Prng random(42);
  TimePoint now{};
  Pool pool = make_pool(now);
  std::set<std::uint64_t> ids;
  std::vector<SegmentId> ending;
  for (int step = 0; step < 20'000; ++step) {
    const auto pick = [&]() -> std::optional<SessionId> {
      if (pool.sessions().empty()) return std::nullopt;
      auto at = pool.sessions().begin();
      std::advance(at, static_cast<long>(random.below(pool.sessions().size())));
      return at->first;
    };
    const auto session = pick();
    const auto event = random.below(6);
    if (event == 0 && pool.sessions().size() < 4) open(pool, now);
    if (event == 1 && session) {
      auto made = pool.reserve(*session, 1 + random.below(4 * kSegment), "local");
      if (made) {
        for (const SegmentId id : *made) {
          CHECK(ids.insert(id.value()).second);
          REQUIRE(pool.activate(id));
        }
      }
    }
    if (event == 2 && session && !pool.sessions().at(*session).segments.empty()) {
      const SegmentId id = *pool.sessions().at(*session).segments.begin();
      REQUIRE(pool.release(*session, {id}).ok());
      ending.push_back(id);
    }
    if (event == 3 && session && random.below(4) == 0) {
      for (const SegmentId id : pool.close_session(*session)) ending.push_back(id);
    }
    if (event == 4 && !ending.empty()) {
      pool.forget(ending.back());
      ending.pop_back();
    }
    std::set<std::uint64_t> addresses;
    for (const auto& [id, segment] : pool.segments()) {
      REQUIRE(addresses.insert(pool.address(segment).bits()).second);
      REQUIRE(segment.offset_bytes + kSegment <= pool.options().capacity_bytes);
    }
  }
}

}  // namespace ho::daemon
