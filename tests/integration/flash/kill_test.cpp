#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>

#include "common/base/prng.hpp"
#include "tests/integration/flash/flash_file.hpp"
#include "tests/support/flash_ops.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using namespace ho::flash;

constexpr std::uint64_t kExtents = 4;
constexpr std::uint64_t kExtentBlocks = 700;  // has stripes on both paths
constexpr std::size_t kInflight = 8;

/// The writer's report about one acknowledged block.
struct Ack {
  std::uint32_t object = 0;
  std::uint32_t block = 0;
  std::uint64_t version = 0;
};

/// The content of a block identifies it and continues in a pattern derived from that.
void fill_block(std::byte* block, const Ack& ack) {
  std::memcpy(block, &ack, sizeof(ack));
  Prng random(ack.version * 1000003 + ack.block * 31 + ack.object);
  for (std::size_t at = sizeof(ack); at < kBlockBytes; at += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(block + at, &word, 8);
  }
}

std::uint64_t object_of(const ExtentInfo& info) { return std::stoull(info.about.label); }

/// Writes random runs of blocks forever, and reports the acknowledged ones.
[[noreturn]] void write_until_killed(const std::vector<std::string>& paths, int report,
                                     std::uint64_t round) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto store = test::open_store(paths, round);
  if (!store) ::_exit(2);
  std::map<std::uint64_t, ExtentId> extents;
  for (const ExtentInfo& info : (*store)->extents()) extents[object_of(info)] = info.id;
  for (std::uint64_t object = 0; object < kExtents; ++object) {
    if (extents.count(object) != 0) continue;
    const std::string label = std::to_string(object);
    const auto made =
        (*store)->create({kExtentBlocks * kBlockBytes, Policy::kDurable, 0, 0, "", label});
    if (!made) ::_exit(3);
    extents[object] = *made;
  }
  Prng random(round);
  std::uint64_t version = round << 32U;
  AlignedMemory memory(kInflight * 16 * kBlockBytes);
  std::array<std::vector<Ack>, kInflight> slots;
  const auto submit = [&](std::size_t slot) {
    const std::uint64_t object = random.below(kExtents);
    const std::uint64_t count = 1 + random.below(16);
    const std::uint64_t first = random.below(kExtentBlocks - count);
    std::byte* const begin = memory.data() + slot * 16 * kBlockBytes;
    slots[slot].clear();
    ++version;
    for (std::uint64_t i = 0; i < count; ++i) {
      slots[slot].push_back(
          {static_cast<std::uint32_t>(object), static_cast<std::uint32_t>(first + i), version});
      fill_block(begin + i * kBlockBytes, slots[slot].back());
    }
    const bool taken = (*store)
                           ->submit(test::write_op(OpId(slot), extents[object], first * kBlockBytes,
                                                   {begin, count * kBlockBytes}))
                           .ok();
    if (!taken) ::_exit(4);
  };
  for (std::size_t slot = 0; slot < kInflight; ++slot) submit(slot);
  for (;;) {
    StoreCompletion done;
    if ((*store)->poll(std::span(&done, 1)) == 0) {
      (*store)->wait(std::chrono::seconds(1));
      continue;
    }
    if (done.done.code != Errc::kOk) ::_exit(5);
    const auto& acks = slots[done.done.op.value()];
    const auto bytes = static_cast<ssize_t>(acks.size() * sizeof(Ack));
    if (::write(report, acks.data(), static_cast<std::size_t>(bytes)) != bytes) ::_exit(6);
    submit(done.done.op.value());
  }
}

using Acked = std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t>;

void collect(int report, std::chrono::milliseconds time, Acked& acked) {
  const auto end = std::chrono::steady_clock::now() + time;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    struct pollfd events {
      report, POLLIN, 0
    };
    if (left.count() < 0 || ::poll(&events, 1, static_cast<int>(left.count())) <= 0) return;
    Ack ack;
    if (::read(report, &ack, sizeof(ack)) != sizeof(ack)) return;
    acked[{ack.object, ack.block}] = ack.version;
  }
}

void check_all(ExtentStore& store, const Acked& acked, std::uint64_t round) {
  std::map<std::uint64_t, ExtentId> extents;
  for (const ExtentInfo& info : store.extents()) {
    CHECK(object_of(info) < kExtents);
    CHECK(extents.emplace(object_of(info), info.id).second);
  }
  store.check_space();
  AlignedMemory memory(kBlockBytes);
  std::vector<std::byte> expected(kBlockBytes);
  for (const auto& [object, extent] : extents) {
    for (std::uint32_t block = 0; block < kExtentBlocks; ++block) {
      REQUIRE(
          store.submit(test::read_op(OpId(1), extent, block * kBlockBytes, memory.span())).ok());
      const auto done = test::wait_for_one(store);
      const auto known = acked.find({static_cast<std::uint32_t>(object), block});
      if (done.done.code == Errc::kNotFound) {
        if (known != acked.end()) FAIL("an acknowledged block was never written");
        continue;
      }
      if (done.done.code != Errc::kOk) FAIL(store.describe(done.fault));
      Ack is;
      std::memcpy(&is, memory.data(), sizeof(is));
      fill_block(expected.data(), is);
      const bool whole = std::memcmp(expected.data(), memory.data(), kBlockBytes) == 0;
      if (!whole || is.object != object || is.block != block) FAIL("a block holds something else");
      if (known != acked.end() && is.version < known->second) FAIL("a block is older than its ack");
      if (is.version >> 32U > round) FAIL("a block from the future");
    }
  }
}

/// Kills a writer again and again; after each kill it checks every acknowledged write.
void kill_writers(std::uint64_t rounds) {
  const test::TempFolder folder;
  if (const std::string why = test::no_flash_here(folder); !why.empty()) return test::skip(why);
  const std::vector<std::string> paths{folder.path("a"), folder.path("b")};
  for (const std::string& path : paths) test::make_file(path, 16 * kMiB);
  Acked acked;
  Prng random(8);
  std::size_t acks_before_kill = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    INFO("round " << round);
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    UniqueFd in(ends[0]);
    UniqueFd out(ends[1]);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) write_until_killed(paths, out.get(), round);
    out.reset();
    collect(in.get(), std::chrono::milliseconds(20 + random.below(200)), acked);
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    collect(in.get(), std::chrono::seconds(5), acked);  // until the pipe is empty: closed
    acks_before_kill = acked.size();
    auto store = test::open_store(paths, 1000 + round);
    if (!store) FAIL(store.error().message());
    check_all(**store, acked, round);
  }
  CHECK(acks_before_kill > rounds * kInflight);
}

}  // namespace

TEST_CASE("flash kill: after each kill under write load every acknowledged write is there") {
  kill_writers(5);
}

TEST_CASE("flash kill: after each of 50 kills every acknowledged write is there", "[soak]") {
  kill_writers(50);
}
