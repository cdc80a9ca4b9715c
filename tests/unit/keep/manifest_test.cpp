#include "daemon/keep/manifest.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "tests/support/seeds.hpp"

namespace {

using namespace ho;
using namespace ho::daemon;

/// Aligned, zeroed memory that can be copied, cut and damaged.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : words_(bytes / 8), bytes_(bytes) {}
  [[nodiscard]] std::span<std::byte> all() {
    return {reinterpret_cast<std::byte*>(words_.data()), bytes_};
  }
  [[nodiscard]] std::span<const std::byte> first(std::size_t count) { return all().first(count); }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t bytes_;
};

TimePoint at(std::int64_t seconds) { return TimePoint(std::chrono::seconds(seconds)); }

Kept empty_node() {
  Kept kept;
  kept.node.node = NodeId(3);
  kept.node.incarnation = 77;
  kept.node.generation = 5;
  kept.node.segment_bytes = 2 * kMiB;
  kept.node.unix_socket = "/run/x.sock";
  kept.alive = at(100);
  return kept;
}

KeptSession session(std::uint64_t id) {
  KeptSession out;
  out.id = SessionId(id);
  out.token = "0123456789abcde" + std::to_string(id % 10);
  out.name = "job";
  out.owner = "uid 7";
  out.driver = "tcp";
  out.opened = at(50);
  out.lease_end = at(110);
  return out;
}

KeptSegment segment(std::uint64_t id, std::uint64_t of, std::uint64_t place) {
  KeptSegment out;
  out.id = SegmentId(id);
  out.session = SessionId(of);
  out.offset_bytes = place * 2 * kMiB;
  out.driver = "tcp";
  out.inode = 1000 + id;
  return out;
}

/// More than what is lost of a time that is written.
constexpr Duration kTimeUnit = std::chrono::milliseconds(1);

/// A state as text, to compare.
std::string text(const Kept& kept) {
  std::string out = std::to_string(kept.node.incarnation) + "/" +
                    std::to_string(kept.node.next_session.value()) + "/" +
                    std::to_string(kept.node.next_segment.value());
  for (const auto& [id, one] : kept.sessions) {
    out += " " + std::to_string(id.value()) + one.token + one.name + one.driver +
           std::to_string((one.lease_end + kTimeUnit).time_since_epoch() / std::chrono::seconds(1));
  }
  for (const auto& [id, one] : kept.segments) {
    out += " " + std::to_string(id.value()) + ":" + std::to_string(one.session.value()) + "@" +
           std::to_string(one.offset_bytes) + "#" + std::to_string(one.inode);
  }
  return out;
}

constexpr std::size_t kBytes = 64 * kKiB;
constexpr std::size_t kLogAt = 64 + kLeaseCells * 8;

/// A log of some entries. @return the states after each of them.
std::vector<std::string> write_some(Memory& memory) {
  std::vector<std::string> states;
  auto log = ManifestLog::create(memory.all(), empty_node());
  REQUIRE(log.ok());
  states.push_back(text(log->state()));
  const std::vector<ManifestEntry> entries = {
      session(1),       segment(1, 1, 0), session(2),
      segment(2, 2, 1), segment(3, 1, 2), SegmentEnded{SegmentId(1)},
      session(3),       segment(4, 3, 0), SessionEnded{SessionId(2)}};
  for (const ManifestEntry& entry : entries) {
    REQUIRE(log->append(entry).ok());
    states.push_back(text(log->state()));
  }
  return states;
}

TEST_CASE("manifest: what was written is read") {
  Memory memory(kBytes);
  const auto states = write_some(memory);
  const auto read = ManifestLog::read(memory.all());
  REQUIRE(read.ok());
  CHECK(text(*read) == states.back());
  CHECK(read->node.node == NodeId(3));
  CHECK(read->node.generation == 5);
  CHECK(read->node.unix_socket == "/run/x.sock");
  CHECK(read->sessions.size() == 2);
  CHECK(read->segments.size() == 2);
  // Those that ended were given, too.
  CHECK(read->node.next_segment == SegmentId(5));
}

TEST_CASE("manifest: leases and the sign of life change in place") {
  Memory memory(kBytes);
  auto log = ManifestLog::create(memory.all(), empty_node());
  REQUIRE(log.ok());
  REQUIRE(log->append(session(1)).ok());
  log->set_lease(SessionId(1), at(222));
  log->set_alive(at(215));
  const auto read = ManifestLog::read(memory.all());
  REQUIRE(read.ok());
  const auto near = [](TimePoint a, TimePoint b) {
    return a <= b && b - a < std::chrono::milliseconds(1);
  };
  CHECK(near(read->sessions.at(SessionId(1)).lease_end, at(222)));
  CHECK(near(read->alive, at(215)));
}

TEST_CASE("manifest: a rewritten state is the same state") {
  Memory memory(kBytes);
  const auto states = write_some(memory);
  const auto read = ManifestLog::read(memory.all());
  REQUIRE(read.ok());
  Memory fresh(ManifestLog::bytes_for(*read));
  REQUIRE(ManifestLog::create(fresh.all(), *read).ok());
  const auto again = ManifestLog::read(fresh.all());
  REQUIRE(again.ok());
  CHECK(text(*again) == states.back());
}

TEST_CASE("manifest: a process that is killed at any byte leaves the state before or after") {
  // The bytes reach memory in order; the length comes last, in one store. So the picture after a
  // kill is: the new record cut at any byte, and the old length.
  Memory memory(kBytes);
  auto log = ManifestLog::create(memory.all(), empty_node());
  REQUIRE(log.ok());
  REQUIRE(log->append(session(1)).ok());
  const std::string before = text(log->state());
  Memory old(kBytes);
  std::ranges::copy(memory.all(), old.all().begin());
  REQUIRE(log->append(segment(1, 1, 0)).ok());
  const std::string after = text(log->state());
  std::size_t changed_end = 0;
  for (std::size_t i = kLogAt; i < kBytes; ++i) {
    if (memory.all()[i] != old.all()[i]) changed_end = i + 1;
  }
  REQUIRE(changed_end > kLogAt);
  for (std::size_t cut = kLogAt; cut <= changed_end; ++cut) {
    Memory torn(kBytes);
    std::ranges::copy(old.all(), torn.all().begin());
    std::copy_n(memory.all().begin() + kLogAt, cut - kLogAt, torn.all().begin() + kLogAt);
    const auto read = ManifestLog::read(torn.all());
    REQUIRE(read.ok());
    REQUIRE(text(*read) == before);
  }
  const auto read = ManifestLog::read(memory.all());
  REQUIRE(read.ok());
  CHECK(text(*read) == after);
}

TEST_CASE("manifest: cut short at any byte it is refused, or whole") {
  Memory memory(kBytes);
  const auto states = write_some(memory);
  std::size_t used = 0;
  for (std::size_t i = 0; i < kBytes; ++i) {
    if (memory.all()[i] != std::byte{0}) used = i + 1;
  }
  for (std::size_t bytes = 0; bytes < kBytes; bytes += bytes < kLogAt ? 97 : 1) {
    const auto read = ManifestLog::read(memory.first(bytes));
    if (bytes < used) {
      REQUIRE_FALSE(read.ok());
      REQUIRE(read.error().code() == Errc::kCorrupt);
    } else if (read) {  // up to 7 bytes of padding count as well
      REQUIRE(text(*read) == states.back());
    }
  }
}

TEST_CASE("manifest: with any bit flipped it is refused, where the bit counts") {
  Memory memory(kBytes);
  const auto states = write_some(memory);
  const auto whole = ManifestLog::read(memory.all());
  REQUIRE(whole.ok());
  std::size_t used = 0;
  for (std::size_t i = 0; i < kBytes; ++i) {
    if (memory.all()[i] != std::byte{0}) used = i + 1;
  }
  std::size_t refused = 0;
  for (std::size_t i = 0; i < used; ++i) {
    // The leases of nobody and what is reserved say nothing.
    const bool silent = (i >= 24 && i < 64) || (i >= 64 + 3 * 8 && i < kLogAt);
    if (silent && i % 509 != 0) continue;
    for (unsigned bit = 0; bit < 8; ++bit) {
      memory.all()[i] ^= std::byte{1} << bit;
      const auto read = ManifestLog::read(memory.all());
      if (!read) {
        ++refused;
      } else {
        INFO("byte " << i << " bit " << bit);
        REQUIRE(text(*read) == states.back());  // padding
      }
      memory.all()[i] ^= std::byte{1} << bit;
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("manifest: entries that contradict the state are refused and change nothing") {
  Memory memory(kBytes);
  auto log = ManifestLog::create(memory.all(), empty_node());
  REQUIRE(log.ok());
  REQUIRE(log->append(session(1)).ok());
  REQUIRE(log->append(segment(1, 1, 0)).ok());
  const std::string before = text(log->state());
  KeptSession short_token = session(2);
  short_token.token = "x";
  KeptSegment crooked = segment(2, 1, 1);
  crooked.offset_bytes += 4096;
  const std::vector<ManifestEntry> wrong = {session(1),
                                            segment(1, 1, 1),
                                            segment(2, 9, 1),
                                            segment(2, 1, 0),
                                            SessionEnded{SessionId(9)},
                                            SegmentEnded{SegmentId(9)},
                                            empty_node().node,
                                            short_token,
                                            crooked};
  for (const ManifestEntry& entry : wrong) {
    const auto done = log->append(entry);
    REQUIRE_FALSE(done.ok());
    CHECK(done.error().code() == Errc::kCorrupt);
    CHECK(text(log->state()) == before);
  }
  const auto read = ManifestLog::read(memory.all());
  REQUIRE(read.ok());
  CHECK(text(*read) == before);
}

TEST_CASE("manifest: a full log refuses the entry and stays readable, and cells are used again") {
  Memory memory(kLogAt + 4 * kKiB);
  auto log = ManifestLog::create(memory.all(), empty_node());
  REQUIRE(log.ok());
  REQUIRE(log->append(session(1)).ok());
  const std::uint32_t cell = log->state().sessions.at(SessionId(1)).lease_cell;
  REQUIRE(log->append(SessionEnded{SessionId(1)}).ok());
  REQUIRE(log->append(session(2)).ok());
  CHECK(log->state().sessions.at(SessionId(2)).lease_cell == cell);
  std::uint64_t id = 1;
  auto done = log->append(segment(id, 2, id));
  for (; done; ++id) done = log->append(segment(id + 1, 2, id + 1));
  CHECK(done.error().code() == Errc::kExhausted);
  const auto read = ManifestLog::read(memory.all());
  REQUIRE(read.ok());
  CHECK(text(*read) == text(log->state()));
}

TEST_CASE("manifest: whatever happens, what is read is what was last appended") {
  test::for_each_seed(20, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Memory memory(256 * kKiB);
    auto log = ManifestLog::create(memory.all(), empty_node());
    REQUIRE(log.ok());
    for (int i = 0; i < 300; ++i) {
      ManifestEntry entry = session(random() % 40);
      switch (random() % 4) {
        case 0: break;
        case 1: entry = segment(random() % 60, random() % 40, random() % 30); break;
        case 2: entry = SegmentEnded{SegmentId(random() % 60)}; break;
        default:
          if (random() % 4 == 0) entry = SessionEnded{SessionId(random() % 40)};
      }
      static_cast<void>(log->append(entry));  // many contradict the state
    }
    const auto read = ManifestLog::read(memory.all());
    REQUIRE(read.ok());
    CHECK(text(*read) == text(log->state()));
  });
}

}  // namespace
