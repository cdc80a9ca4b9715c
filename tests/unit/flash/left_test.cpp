#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/support/flash_ops.hpp"
#include "tests/support/seeds.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;

constexpr std::uint64_t kExtentBytes = 256 * kKiB;
constexpr std::uint64_t kKeptBytes = 2 * kMiB + kStripeBytes / 2;

/// A store of two paths with scratch extents, one of them over both paths and written in part.
struct Rig : test::StoreRig {
  explicit Rig(std::byte id = {}) : StoreRig(8 * kMiB) {
    set = id;
    disks.push_back(std::make_shared<test::SimDisk>(8 * kMiB));
    REQUIRE(open().ok());
    capacity = free_bytes();
    durable = create(kExtentBytes);
    kept = made(kKeptBytes, "kept");
    other = made(kExtentBytes, "other");
    REQUIRE(write(durable, 0, bytes_of(kExtentBytes, 3)).done.code == Errc::kOk);
    REQUIRE(write(kept, kFrom, bytes_of(kStripeBytes, 4)).done.code == Errc::kOk);
  }
  ExtentId made(std::uint64_t bytes, const char* owner) {
    ExtentSpec spec{bytes, Policy::kScratch, 7};
    spec.owner = owner;
    const auto extent = store->create(spec);
    REQUIRE(extent.ok());
    return *extent;
  }
  [[nodiscard]] std::uint64_t free_bytes() const {
    std::uint64_t bytes = 0;
    for (const PathStatus& path : store->paths()) bytes += path.free_bytes;
    return bytes;
  }
  /// Ends the store as an upgrade does.
  std::string leave() {
    REQUIRE(store->close().ok());
    return store->leave({kept, ExtentId(1000)});
  }
  /// Whether the next store takes the extent over. What it has is right in any case.
  bool takes(const std::string& bytes) {
    left = bytes;
    REQUIRE(open().ok());
    left.clear();
    store->check_space();
    auto into = bytes_of(kExtentBytes, 0);
    CHECK(read(durable, 0, into).done.code == Errc::kOk);
    CHECK(into == bytes_of(kExtentBytes, 3));
    if (!store->find(kept)) {
      CHECK(free_bytes() == capacity - kExtentBytes);
      return false;
    }
    CHECK(free_bytes() == capacity - kExtentBytes - kKeptBytes);
    into = bytes_of(kStripeBytes, 0);
    CHECK(read(kept, kFrom, into).done.code == Errc::kOk);
    CHECK(into == bytes_of(kStripeBytes, 4));
    CHECK(read(kept, 0, std::span(into).first(4096)).done.code == Errc::kNotFound);
    return true;
  }

  static constexpr std::uint64_t kFrom = kStripeBytes / 2;
  std::uint64_t capacity = 0;
  ExtentId durable;
  ExtentId kept;
  ExtentId other;
};

}  // namespace

TEST_CASE("flash left: the next store has the scratch extents it was left, with their bytes") {
  Rig rig;
  for (int turn = 0; turn < 3; ++turn) {
    REQUIRE(rig.takes(rig.leave()));
    CHECK_FALSE(rig.store->find(rig.other));
    CHECK(rig.store->owned_bytes().at("kept") == kKeptBytes);
    CHECK(rig.store->owned_bytes().count("other") == 0);
    CHECK(rig.store->find(rig.kept)->policy == Policy::kScratch);
    CHECK(rig.made(4096, "next") > rig.kept);
  }
  // From now on it is a scratch extent as any other.
  rig.store->claim(rig.kept, 9);
  REQUIRE(rig.write(rig.kept, 0, bytes_of(4096, 6)).done.code == Errc::kOk);
  auto into = bytes_of(4096, 0);
  CHECK(rig.read(rig.kept, 0, into).done.code == Errc::kOk);
  CHECK(into == bytes_of(4096, 6));
  rig.store->end_session(9);
  CHECK_FALSE(rig.store->find(rig.kept));
  rig.store->end_session(7);  // "next"
  CHECK(rig.free_bytes() == rig.capacity - kExtentBytes);
}

TEST_CASE("flash left: a start without what was left has all the space") {
  Rig rig;
  const std::string left = rig.leave();
  CHECK_FALSE(rig.takes({}));
  // The space is another extent's by now, and later starts believe nothing.
  REQUIRE(rig.store->close().ok());
  CHECK_FALSE(rig.takes(left));
  CHECK(rig.findings.empty());
}

TEST_CASE("flash left: extents are not taken over twice, or by other paths") {
  Rig rig;
  const std::string left = rig.leave();
  REQUIRE(rig.takes(left));
  rig.store->claim(rig.kept, 1);
  rig.sim->cut();
  CHECK_FALSE(rig.takes(left));
  Rig stranger(std::byte{1});
  REQUIRE(stranger.store->close().ok());
  CHECK_FALSE(stranger.takes(left));
}

TEST_CASE("flash left: a byte that changed on the path is corrupt, and the rest is right") {
  Rig rig;
  const std::string left = rig.leave();
  const auto plan = plan_geometry(rig.disks[0]->size());
  bool flipped = false;
  for (std::uint32_t block = 0; block < plan->data_blocks && !flipped; ++block) {
    const std::uint64_t at = plan->data_offset(block) + 77;
    flipped = rig.disks[0]->current()[at] == std::byte{4};
    if (flipped) rig.disks[0]->flip(at, 2);
  }
  REQUIRE(flipped);
  rig.left = left;
  REQUIRE(rig.open().ok());
  std::size_t corrupt = 0;
  for (std::uint64_t at = 0; at < kStripeBytes; at += kBlockBytes) {
    auto into = bytes_of(kBlockBytes, 0);
    const Errc code = rig.read(rig.kept, Rig::kFrom + at, into).done.code;
    corrupt += code == Errc::kCorrupt ? 1 : 0;
    if (code == Errc::kOk) CHECK(into == bytes_of(kBlockBytes, 4));
  }
  CHECK(corrupt == 1);
}

TEST_CASE("flash left: many extents pass in more than one frame a path") {
  Rig rig;
  constexpr std::size_t kMany = 12'000;
  rig.extents_max = 2 * kMany;
  REQUIRE(rig.store->close().ok());
  for (auto& disk : rig.disks) disk = std::make_shared<test::SimDisk>(48 * kMiB);
  REQUIRE(rig.open().ok());
  std::set<ExtentId> all;
  std::map<ExtentId, unsigned> written;
  for (std::size_t i = 0; i < kMany; ++i) {
    const ExtentId id = rig.made(kBlockBytes, "small");
    all.insert(id);
    if (i % 100 != 0) continue;
    written[id] = static_cast<unsigned>(1 + i % 97);
    REQUIRE(rig.write(id, 0, bytes_of(kBlockBytes, written[id])).done.code == Errc::kOk);
  }
  REQUIRE(rig.store->close().ok());
  rig.left = rig.store->leave(all);
  CHECK(rig.left.size() > 2 * kMiB);
  REQUIRE(rig.open().ok());
  rig.store->check_space();
  CHECK(rig.store->owned_bytes().at("small") == kMany * kBlockBytes);
  for (const auto& [id, value] : written) {
    auto into = bytes_of(kBlockBytes, 0);
    CHECK(rig.read(id, 0, into).done.code == Errc::kOk);
    CHECK(into == bytes_of(kBlockBytes, value));
  }
}

TEST_CASE("flash left: damaged bytes are refused as a whole") {
  Rig rig;
  const std::string left = rig.leave();
  rig.store.reset();
  // What a start does to the paths is undone, so that only the bytes decide.
  const std::vector<std::shared_ptr<test::SimDisk>> disks = rig.disks;
  const auto refused = [&](const std::string& bytes) {
    for (std::size_t i = 0; i < disks.size(); ++i) {
      rig.disks[i] = std::make_shared<test::SimDisk>(*disks[i]);
    }
    return !rig.takes(bytes);
  };
  REQUIRE_FALSE(refused(left));
  test::for_each_seed(60, [&](std::uint64_t seed) {
    Prng random(seed);
    std::string wrong = left;
    const std::uint64_t at = random.below(wrong.size());
    if (seed % 2 == 0) wrong.resize(std::max<std::uint64_t>(at, 1));
    if (seed % 2 == 1) wrong[at] = static_cast<char>(wrong[at] ^ (1 << random.below(8)));
    REQUIRE(refused(wrong));
  });
  REQUIRE(refused(left + std::string(4096, '\0')));
}
