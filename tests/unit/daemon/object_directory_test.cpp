#include "daemon/objects/object_directory.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "daemon/objects/object_claims.hpp"

namespace {

using namespace ho;
using daemon::ObjectDirectory;
using daemon::Pool;
using daemon::TenantSpec;

constexpr std::uint64_t kSegment = 2U << 20U;
const TimePoint kStart{};

struct Rig {
  Rig() : pool(options(), kStart), objects(pool, 1) {}

  static Pool::Options options() {
    Pool::Options out;
    out.node_name = "n";
    out.capacity_bytes = 64 * kSegment;
    out.segment_bytes = kSegment;
    out.lease = std::chrono::seconds(10);
    return out;
  }
  SessionId session() {
    daemon::SessionSpec spec;
    spec.token = std::string(kSessionTokenBytes, 't');
    return *pool.open_session(std::move(spec), kStart);
  }
  std::vector<SegmentId> segments(SessionId session, std::uint64_t count) {
    auto made = pool.reserve(session, count * kSegment, "local");
    REQUIRE(made.ok());
    for (const SegmentId id : *made) REQUIRE(pool.activate(id));
    return *made;
  }
  static ObjectPart part(std::uint64_t version, std::vector<SegmentId> segments,
                         std::uint64_t run = 1) {
    ObjectPart out;
    out.id = {"w", version, run, 0};
    out.segments = std::move(segments);
    out.length_bytes = 1000;
    out.manifest_bytes = 10;
    return out;
  }

  Pool pool;
  ObjectDirectory objects;
  const TenantSpec tenant{"uid 1", "w", ""};
};

Errc code(const Result<void>& outcome) { return outcome ? Errc::kOk : outcome.error().code(); }

}  // namespace

TEST_CASE("objects: a part is found while its segments are live", "[unit]") {
  Rig rig;
  const SessionId publisher = rig.session();
  const auto segments = rig.segments(publisher, 2);
  REQUIRE(rig.objects.publish(publisher, rig.tenant, Rig::part(1, segments), kStart).ok());
  REQUIRE(rig.objects.find(rig.tenant, 0, UINT64_MAX).size() == 1);
  CHECK(rig.objects.find(rig.tenant, 2, UINT64_MAX).empty());
  CHECK(rig.objects.find({"uid 2", "w", ""}, 0, UINT64_MAX).empty());
  CHECK(rig.objects.find({"uid 1", "w", "0123456789abcdef"}, 0, UINT64_MAX).empty());
  REQUIRE(rig.pool.release(publisher, {segments[1]}).ok());
  CHECK(rig.objects.find(rig.tenant, 0, UINT64_MAX).empty());
  CHECK(rig.objects.list(0, kStart).empty());
  const SessionId reader = rig.session();
  CHECK(rig.objects.open(reader, rig.tenant, {"w", 1, 1, 0}, 0).error().code() == Errc::kNotFound);
  rig.objects.tick();
  CHECK(code(rig.objects.drop(publisher, rig.tenant, {"w", 1, 1, 0})) == Errc::kNotFound);
}

TEST_CASE("objects: a part that is open is not dropped", "[unit]") {
  Rig rig;
  const SessionId publisher = rig.session();
  const SessionId reader = rig.session();
  const auto segments = rig.segments(publisher, 1);
  const ObjectPart part = Rig::part(1, segments);
  REQUIRE(rig.objects.publish(publisher, rig.tenant, part, kStart).ok());
  const auto first = rig.objects.open(reader, rig.tenant, part.id, 0);
  const auto second = rig.objects.open(reader, rig.tenant, part.id, 0);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(rig.objects.open(reader, rig.tenant, part.id, first->hold)->hold == first->hold);
  CHECK(rig.objects.open(publisher, rig.tenant, part.id, first->hold).error().code() ==
        Errc::kNotFound);
  CHECK(rig.objects.list(0, kStart).front().info.readers == 2);
  const auto drop = [&] { return code(rig.objects.drop(publisher, rig.tenant, part.id)); };
  CHECK(drop() == Errc::kBusy);
  rig.objects.close(publisher, {first->hold});  // not its own
  rig.objects.close(reader, {first->hold, first->hold});
  CHECK(drop() == Errc::kBusy);
  SECTION("until it is closed") { rig.objects.close(reader, {second->hold}); }
  SECTION("until its reader's session ends") {
    static_cast<void>(rig.pool.close_session(reader));
    rig.objects.tick();
  }
  CHECK(code(rig.objects.drop(reader, rig.tenant, part.id)) == Errc::kNotFound);
  CHECK(drop() == Errc::kOk);
  CHECK(rig.objects.find(rig.tenant, 0, UINT64_MAX).empty());
}

TEST_CASE("objects: a version has parts of one run", "[unit]") {
  Rig rig;
  const SessionId publisher = rig.session();
  const SessionId other = rig.session();
  const auto segments = rig.segments(publisher, 1);
  const auto theirs = rig.segments(other, 1);
  const auto publish = [&](SessionId session, const ObjectPart& part) {
    return code(rig.objects.publish(session, rig.tenant, part, kStart));
  };
  CHECK(publish(publisher, Rig::part(1, segments)) == Errc::kOk);
  CHECK(publish(publisher, Rig::part(1, segments)) == Errc::kAlreadyExists);
  CHECK(publish(other, Rig::part(1, theirs, 2)) == Errc::kAlreadyExists);
  CHECK(publish(other, Rig::part(2, theirs, 2)) == Errc::kOk);
  CHECK(publish(other, Rig::part(3, segments, 2)) == Errc::kNotFound);  // not its segments
  // The run ends; its versions may come again.
  static_cast<void>(rig.pool.close_session(publisher));
  CHECK(publish(other, Rig::part(1, theirs, 2)) == Errc::kOk);
  CHECK(rig.objects.find(rig.tenant, 0, UINT64_MAX).front().id.version == 2);  // newest first
}

TEST_CASE("objects: numbers that do not fit together are refused", "[unit]") {
  Rig rig;
  const SessionId publisher = rig.session();
  const auto segments = rig.segments(publisher, 1);
  const auto refused = [&](auto change) {
    ObjectPart part = Rig::part(1, segments);
    change(part);
    return code(rig.objects.publish(publisher, rig.tenant, part, kStart)) == Errc::kInvalidArgument;
  };
  CHECK(refused([](ObjectPart& part) { part.parts = 0; }));
  CHECK(refused([](ObjectPart& part) { part.id.part = 1; }));
  CHECK(refused([](ObjectPart& part) { part.segments.clear(); }));
  CHECK(refused([](ObjectPart& part) { part.segments.push_back(part.segments.front()); }));
  CHECK(refused([](ObjectPart& part) { part.offset_bytes = kSegment - 999; }));
  CHECK(refused([](ObjectPart& part) { part.offset_bytes = UINT64_MAX; }));
  CHECK(refused([](ObjectPart& part) { part.length_bytes = kSegment + 1; }));
  CHECK(refused([](ObjectPart& part) { part.manifest_offset_bytes = 991; }));
  CHECK(refused([](ObjectPart& part) { part.manifest_bytes = UINT64_MAX; }));
  TenantSpec nameless{"uid 1", "", ""};
  CHECK(code(rig.objects.publish(publisher, nameless, Rig::part(1, segments), kStart)) ==
        Errc::kInvalidArgument);
}

TEST_CASE("objects: a session has a quarter of the node's parts and holds", "[unit]") {
  Rig rig;
  const SessionId publisher = rig.session();
  const SessionId other = rig.session();
  const auto segments = rig.segments(publisher, 1);
  const auto theirs = rig.segments(other, 1);
  const auto publish = [&](SessionId session, std::uint64_t version, const auto& where) {
    return code(rig.objects.publish(session, rig.tenant, Rig::part(version, where), kStart));
  };
  constexpr std::uint64_t kParts = ObjectDirectory::kPartsMax / ObjectDirectory::kShare;
  std::uint64_t made = 0;
  while (made <= kParts && publish(publisher, made + 1, segments) == Errc::kOk) made += 1;
  CHECK(made == kParts);
  CHECK(publish(publisher, made + 1, segments) == Errc::kExhausted);
  CHECK(publish(other, made + 1, theirs) == Errc::kOk);

  constexpr std::size_t kHolds = ObjectDirectory::kHoldsMax / ObjectDirectory::kShare;
  const ObjectPartId id{"w", 1, 1, 0};
  std::size_t holds = 0;
  std::uint64_t last = 0;
  for (auto opened = rig.objects.open(other, rig.tenant, id, 0); opened && holds <= kHolds;
       opened = rig.objects.open(other, rig.tenant, id, 0)) {
    holds += 1;
    last = opened->hold;
  }
  CHECK(holds == kHolds);
  CHECK(rig.objects.open(publisher, rig.tenant, id, 0).ok());
  rig.objects.close(other, {last});
  CHECK(rig.objects.open(other, rig.tenant, id, 0).ok());

  // What ended counts until ticks have come by it.
  REQUIRE(rig.pool.release(publisher, segments).ok());
  const auto anew = rig.segments(publisher, 1);
  CHECK(publish(publisher, made + 2, anew) == Errc::kExhausted);
  for (int i = 0; i < 20; ++i) rig.objects.tick();
  CHECK(publish(publisher, made + 2, anew) == Errc::kOk);
  for (std::size_t i = 0; i < kHolds; ++i) {
    REQUIRE(rig.objects.open(other, rig.tenant, {"w", made + 2, 1, 0}, 0).ok());
  }
}

TEST_CASE("objects: the segments of all parts are limited", "[unit]") {
  Rig rig;
  const SessionId publisher = rig.session();
  const auto segments = rig.segments(publisher, 60);
  const auto publish = [&](std::uint64_t version) {
    return code(rig.objects.publish(publisher, rig.tenant, Rig::part(version, segments), kStart));
  };
  constexpr std::uint64_t kVersions = ObjectDirectory::kSegmentsMax / ObjectDirectory::kShare / 60;
  for (std::uint64_t version = 1; version <= kVersions; ++version) {
    REQUIRE(publish(version) == Errc::kOk);
  }
  CHECK(publish(kVersions + 1) == Errc::kExhausted);
  REQUIRE(rig.objects.drop(publisher, rig.tenant, {"w", 1, 1, 0}).ok());
  CHECK(publish(kVersions + 1) == Errc::kOk);
}

TEST_CASE("objects: an old version is found behind more new ones than fit an answer", "[unit]") {
  Rig rig;
  const SessionId publisher = rig.session();
  const auto segments = rig.segments(publisher, 1);
  for (std::uint64_t version = 1; version <= ObjectDirectory::kFoundMax + 1; ++version) {
    REQUIRE(rig.objects.publish(publisher, rig.tenant, Rig::part(version, segments), kStart).ok());
  }
  CHECK(rig.objects.find(rig.tenant, 0, UINT64_MAX).back().id.version == 2);
  const auto old = rig.objects.find(rig.tenant, 1, 1);
  REQUIRE(old.size() == 1);
  CHECK(old.front().id.version == 1);
  CHECK(rig.objects.find(rig.tenant, 0, 2).size() == 2);
  CHECK(rig.objects.find(rig.tenant, 0, 0).empty());
}

TEST_CASE("objects: reserved versions end with their part or session, and are limited", "[unit]") {
  Rig rig;
  daemon::ObjectClaims claims;
  const SessionId one = rig.session();
  const SessionId other = rig.session();
  const std::string name = daemon::ObjectClaims::name_of(rig.tenant, 1);
  CHECK(name != daemon::ObjectClaims::name_of({"uid 2", "w", ""}, 1));
  CHECK(name != daemon::ObjectClaims::name_of(rig.tenant, 2));
  claims.add(one, name, "run 1");
  claims.add(one, name, "run 1");  // asked again
  CHECK(claims.take(other, name).empty());
  REQUIRE(claims.take(one, name).size() == 1);
  CHECK(claims.take(one, name).empty());
  constexpr std::size_t kMost = daemon::ObjectClaims::kMax / daemon::ObjectClaims::kShare;
  for (std::size_t i = 0; i < kMost; ++i) {
    REQUIRE(claims.check_room(one).ok());
    claims.add(one, std::to_string(i), "run 1");
  }
  CHECK(code(claims.check_room(one)) == Errc::kExhausted);
  CHECK(claims.check_room(other).ok());
  claims.add(other, "0", "run 2");
  CHECK(claims.take_ended(rig.pool).empty());
  CHECK(rig.pool.close_session(one).empty());
  CHECK(claims.take_ended(rig.pool).size() == kMost);
  CHECK(claims.take_ended(rig.pool).empty());
  CHECK(claims.take(other, "0").front().value == "run 2");
}
