#include "daemon/blocks/block_index.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <list>
#include <map>
#include <set>

#include "common/base/prng.hpp"
#include "daemon/blocks/left_blocks.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/seeds.hpp"

using namespace ho;
using namespace ho::daemon;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kSegment = 2 * kMiB;
constexpr std::uint64_t kBlock = 256 * kKiB;  // eight a segment
constexpr TimePoint kStart{};
constexpr auto kDdr = BlockMedium::kDdr;
const SessionId kMine(1);
const SessionId kOther(2);

BlockKey key(std::uint64_t number) { return {number * 7919, number}; }

struct Store {
  BlockIndex index{kSegment, 42};
  ModelIndex model = index.model("llama");

  explicit Store(std::uint64_t segments = 1) {
    for (std::uint64_t i = 1; i <= segments; ++i) index.add_area(kDdr, AreaId(i), kBlock);
  }
  BlockIndex::Reserved reserve(std::uint64_t number, std::uint32_t cost = 1,
                               BlockIndex::Evict evict = BlockIndex::Evict::kYes,
                               TimePoint now = kStart, SessionId session = kMine) {
    return index.reserve({key(number), kBlock, cost, model, session}, evict, now);
  }
  std::optional<BlockPlace> place(std::uint64_t number) {
    const auto found = index.get(key(number), model);
    return found ? found->place : std::nullopt;
  }
  bool put(std::uint64_t number, std::uint32_t cost = 1) {
    const auto made = reserve(number, cost);
    if (made.answer != BlockIndex::Answer::kReserved) return false;
    return index.commit(made.place.id, kMine, {number, ~number});
  }
};

}  // namespace

TEST_CASE("block index: a block is found from its commit on, with its checksum") {
  Store store;
  const auto made = store.reserve(1);
  REQUIRE(made.answer == BlockIndex::Answer::kReserved);
  CHECK_FALSE(store.index.has(key(1)));
  CHECK_FALSE(store.index.get(key(1), store.model));
  REQUIRE(store.index.commit(made.place.id, kMine, {7, 8}));
  const auto found = store.place(1);
  REQUIRE(found);
  CHECK(found->offset_bytes == made.place.offset_bytes);
  CHECK(found->checksum == BlockChecksum{7, 8});
  CHECK(store.reserve(1).answer == BlockIndex::Answer::kExists);
  CHECK(store.index.figures().front().second.hits == 1);
  CHECK(store.index.figures().front().second.misses == 1);
}

TEST_CASE("block index: a key counts once, whether it is matched first, looked for, or only got") {
  Store store;
  for (std::uint64_t i = 0; i < 3; ++i) REQUIRE(store.put(i));
  const std::vector<BlockKey> chain{key(0), key(1), key(2), key(3)};
  const auto pinned = store.index.pin(chain, store.model, kMine, kStart + 10s);
  REQUIRE(pinned.count == 3);
  for (std::uint64_t i = 0; i < 3; ++i) CHECK(store.place(i));
  const BlockFigures& figures = store.index.figures().front().second;
  CHECK(figures.hits == 3);
  CHECK(figures.misses == 1);
  store.index.unpin(pinned.pin, kMine);
  CHECK(store.place(0));
  store.index.count_miss(store.model);
  CHECK(figures.hits == 4);
  CHECK(figures.misses == 2);
}

TEST_CASE("block index: a size takes a segment of another that was not used for longer") {
  Store store(2);
  store.index.add_area(kDdr, AreaId(3), 2 * kBlock);
  const auto put_large = [&](std::uint64_t number) {
    const auto made = store.index.reserve({key(number), 2 * kBlock, 1, store.model, kMine},
                                          BlockIndex::Evict::kYes, kStart);
    REQUIRE(store.index.commit(made.place.id, kMine, {}));
  };
  for (std::uint64_t i = 0; i < 2 * kSegment / kBlock; ++i) REQUIRE(store.put(i));
  CHECK_FALSE(store.index.has_victim(kDdr, 2 * kBlock));
  CHECK_FALSE(store.index.colder(kDdr, 2 * kBlock));  // nothing of its own would go
  for (std::uint64_t i = 0; i < kSegment / kBlock / 2; ++i) put_large(100 + i);
  CHECK(store.index.colder(kDdr, 2 * kBlock) == AreaId(1));
  CHECK(store.place(0));
  CHECK(store.index.colder(kDdr, 2 * kBlock) == AreaId(2));
  const auto pinned =
      store.index.pin(std::vector{key(kSegment / kBlock)}, store.model, kMine, kStart + 10s);
  REQUIRE(pinned.count == 1);
  CHECK_FALSE(store.index.colder(kDdr, 2 * kBlock));
  CHECK(store.index.colder(kDdr, kBlock) == std::nullopt);
}

TEST_CASE("block index: with equal costs the least recently used block is evicted") {
  Store store;
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(store.put(i));
  REQUIRE(store.index.get(key(0), store.model));
  REQUIRE(store.put(8));
  CHECK(store.index.has(key(0)));
  CHECK_FALSE(store.index.has(key(1)));
  CHECK(store.index.figures().front().second.evictions == 1);
}

TEST_CASE("block index: a block that is dear stays longer, but not forever") {
  Store store;
  REQUIRE(store.put(0, 3));
  for (std::uint64_t i = 1; i < 8; ++i) REQUIRE(store.put(i));
  for (std::uint64_t i = 8; i < 8 + 14; ++i) REQUIRE(store.put(i));  // two rounds of the others
  CHECK(store.index.has(key(0)));
  for (std::uint64_t i = 30; i < 30 + 16; ++i) REQUIRE(store.put(i));
  CHECK_FALSE(store.index.has(key(0)));
}

TEST_CASE("block index: what is used again and again outlives what is used once") {
  Store store;
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(store.put(i));
  for (int i = 0; i < 3; ++i) REQUIRE(store.index.get(key(0), store.model));
  for (std::uint64_t i = 10; i < 10 + 14; ++i) REQUIRE(store.put(i));
  CHECK(store.index.has(key(0)));
  // 1 was evicted, and is remembered: it stays longer than what comes for the first time.
  REQUIRE_FALSE(store.index.has(key(1)));
  REQUIRE(store.put(1));
  for (std::uint64_t i = 30; i < 30 + 8; ++i) REQUIRE(store.put(i));
  CHECK(store.index.has(key(1)));
  for (std::uint64_t i = 40; i < 40 + 60; ++i) REQUIRE(store.put(i));
  CHECK_FALSE(store.index.has(key(0)));
  REQUIRE(store.put(0));
  for (std::uint64_t i = 100; i < 100 + 8; ++i) REQUIRE(store.put(i));  // forgotten by now
  CHECK_FALSE(store.index.has(key(0)));
}

TEST_CASE("block index: a block that is always pinned counts a use for each further pin") {
  Store store;
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(store.put(i));
  const std::vector<BlockKey> chain{key(0)};
  const auto first = store.index.pin(chain, store.model, kMine, kStart + 10s);
  const auto second = store.index.pin(chain, store.model, kOther, kStart + 10s);
  store.index.unpin(first.pin, kMine);
  store.index.unpin(second.pin, kOther);
  for (std::uint64_t i = 10; i < 10 + 14; ++i) REQUIRE(store.put(i));
  CHECK(store.index.has(key(0)));  // 3 uses: two pins, and its put
}

TEST_CASE("block index: a pinned block is not evicted until its pin ends") {
  Store store;
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(store.put(i));
  std::vector<BlockKey> chain;
  for (const std::uint64_t i : {0U, 1U, 2U, 99U, 3U}) chain.push_back(key(i));
  const auto pinned = store.index.pin(chain, store.model, kMine, kStart + 10s);
  CHECK(pinned.count == 3);
  for (std::uint64_t i = 10; i < 20; ++i) REQUIRE(store.put(i));
  for (std::uint64_t i = 0; i < 3; ++i) CHECK(store.index.has(key(i)));
  store.index.unpin(pinned.pin, kOther);  // not its own
  for (std::uint64_t i = 20; i < 30; ++i) REQUIRE(store.put(i));
  CHECK(store.index.has(key(0)));
  SECTION("by its session") { store.index.unpin(pinned.pin, kMine); }
  SECTION("by its time") { store.index.tick(kStart + 10s); }
  SECTION("by its session's end") { store.index.end_session(kMine); }
  for (std::uint64_t i = 30; i < 38; ++i) REQUIRE(store.put(i));
  CHECK_FALSE(store.index.has(key(0)));
}

TEST_CASE("block index: a removed block that is pinned keeps its slot until then") {
  Store store;
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(store.put(i));
  const std::vector<BlockKey> chain{key(5)};
  const auto pinned = store.index.pin(chain, store.model, kMine, kStart + 10s);
  REQUIRE(store.index.remove(key(5)));
  CHECK_FALSE(store.index.remove(key(5)));
  CHECK(store.reserve(50, 1, BlockIndex::Evict::kNo).answer == BlockIndex::Answer::kNoRoom);
  store.index.unpin(pinned.pin, kMine);
  CHECK(store.reserve(50, 1, BlockIndex::Evict::kNo).answer == BlockIndex::Answer::kReserved);
}

TEST_CASE("block index: reservations end by age and with their session, never by another's word") {
  Store store;
  const auto made = store.reserve(1);
  CHECK_FALSE(store.index.commit(made.place.id, kOther, {}));
  store.index.drop(made.place.id, kOther);
  SECTION("its session ends") { store.index.end_session(kMine); }
  SECTION("it is too old") {
    store.index.tick(kStart + BlockIndex::kReservationMax - 1ms);
    store.index.tick(kStart + BlockIndex::kReservationMax);
  }
  SECTION("its session drops it") { store.index.drop(made.place.id, kMine); }
  CHECK_FALSE(store.index.commit(made.place.id, kMine, {}));
  for (std::uint64_t i = 0; i < 8; ++i) {
    CHECK(store.reserve(i, 1, BlockIndex::Evict::kNo).answer == BlockIndex::Answer::kReserved);
  }
}

TEST_CASE("block index: of two that store one key the first stays") {
  Store store;
  const auto one = store.reserve(1);
  const auto two = store.reserve(1, 1, BlockIndex::Evict::kNo, kStart, kOther);
  REQUIRE(two.answer == BlockIndex::Answer::kReserved);
  REQUIRE(store.index.commit(two.place.id, kOther, {2, 2}));
  REQUIRE(store.index.commit(one.place.id, kMine, {1, 1}));
  CHECK(store.place(1)->checksum == BlockChecksum{2, 2});
  CHECK(store.index.blocks() == 1);
}

TEST_CASE("block index: a block of another size takes the place of one under its key") {
  Store store;
  constexpr std::uint64_t kOtherBytes = 64 * kKiB;
  store.index.add_area(kDdr, AreaId(2), kOtherBytes);
  REQUIRE(store.put(1));
  const std::vector<BlockKey> keys{key(1)};
  const auto pinned = store.index.pin(keys, store.model, kOther, kStart + 1s);
  const auto made = store.index.reserve({key(1), kOtherBytes, 1, store.model, kMine},
                                        BlockIndex::Evict::kNo, kStart);
  REQUIRE(made.answer == BlockIndex::Answer::kReserved);
  CHECK(store.place(1)->length_bytes == kBlock);  // until the other one is there
  REQUIRE(store.index.commit(made.place.id, kMine, {3, 4}));
  CHECK(store.place(1)->length_bytes == kOtherBytes);
  CHECK(store.place(1)->checksum == BlockChecksum{3, 4});
  CHECK(store.index.blocks() == 1);
  CHECK(store.index.figures().front().second.bytes == kOtherBytes);
  store.index.unpin(pinned.pin, kOther);
  for (std::uint64_t i = 2; i < 10; ++i) {  // the first one's slot is free by now
    CHECK(store.reserve(i, 1, BlockIndex::Evict::kNo).answer == BlockIndex::Answer::kReserved);
  }
}

TEST_CASE("block index: the coldest segment holds the block used longest ago, and nothing in use") {
  Store store(2);
  for (std::uint64_t i = 0; i < 16; ++i) REQUIRE(store.put(i));
  const AreaId cold(store.place(0)->segment.value());  // now its last use
  for (std::uint64_t i = 1; i < 8; ++i) REQUIRE(store.index.get(key(i), store.model));
  REQUIRE(store.index.coldest(kDdr));
  const AreaId other = *store.index.coldest(kDdr);
  CHECK(other != cold);
  const std::vector<BlockKey> chain{key(15)};
  const auto pinned = store.index.pin(chain, store.model, kMine, kStart + 1s);
  CHECK(store.index.coldest(kDdr) == cold);
  store.index.unpin(pinned.pin, kMine);
  store.index.drop_area(kDdr, cold);
  CHECK(store.index.blocks() == 8);
  CHECK(store.index.figures().front().second.bytes == 8 * kBlock);
}

TEST_CASE("block index: 10,000 keys are looked up within 10 ms", "[time]") {
  BlockIndex index(256 * kMiB, 42);
  const ModelIndex model = index.model("m");
  index.add_area(kDdr, AreaId(1), 4 * kKiB);
  for (std::uint64_t i = 0; i < 10'000; i += 2) {
    const auto made =
        index.reserve({key(i), 4 * kKiB, 1, model, kMine}, BlockIndex::Evict::kNo, kStart);
    REQUIRE(index.commit(made.place.id, kMine, {}));
  }
  const auto begin = std::chrono::steady_clock::now();
  std::size_t found = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) found += index.has(key(i)) ? 1U : 0U;
  CHECK(found == 5'000);
  CHECK(std::chrono::steady_clock::now() - begin < test::within(10ms));
}

TEST_CASE("block index: the next daemon finds and evicts what the last one had") {
  Store last(2);
  for (std::uint64_t i = 0; i < 16; ++i) REQUIRE(last.put(i));
  static_cast<void>(last.index.get(key(0), last.model));  // 1 is the oldest
  REQUIRE(last.index.remove(key(5)));
  REQUIRE(last.reserve(90).answer == BlockIndex::Answer::kReserved);  // takes its slot
  std::vector<LeftTenant> left(1);
  left[0] = {std::string("\0secret", 7), "uid 1/chat", "uid 1", true, SessionId(9),
             last.index.leave()};
  const auto bytes = encode(left);
  REQUIRE(bytes.ok());
  const auto read = decode_left(std::as_bytes(std::span(*bytes)));
  REQUIRE(read.ok());
  REQUIRE(read->size() == 1);
  CHECK(read->front().identity == left[0].identity);
  CHECK(read->front().name == "uid 1/chat");
  CHECK(read->front().unlimited);
  CHECK(read->front().session == SessionId(9));
  BlockIndex next(kSegment, 43);
  REQUIRE(next.adopt(read->front().index).ok());
  CHECK(next.blocks() == 15);
  CHECK(next.figures().front().second.bytes == 15 * kBlock);
  CHECK(next.figures().front().second.hits == 1);
  CHECK(next.coldest(kDdr) == AreaId(2));  // 0 was used last
  const ModelIndex model = next.model("llama");
  for (std::uint64_t i = 0; i < 16; ++i) {
    const auto before = last.place(i);
    const auto found = next.get(key(i), model);
    const auto after = found ? found->place : std::nullopt;
    REQUIRE(before.has_value() == after.has_value());
    if (!after) continue;
    CHECK(after->segment == before->segment);
    CHECK(after->offset_bytes == before->offset_bytes);
    CHECK(after->checksum == before->checksum);
  }
  BlockIndex again(kSegment, 44);
  REQUIRE(again.adopt(read->front().index).ok());
  const auto put = [&](std::uint64_t number) {
    return again.reserve({key(number), kBlock, 1, model, kMine}, BlockIndex::Evict::kYes, kStart);
  };
  REQUIRE(put(100).answer == BlockIndex::Answer::kReserved);  // the slot of the reservation
  CHECK(again.has(key(1)));
  REQUIRE(put(101).answer == BlockIndex::Answer::kReserved);
  CHECK_FALSE(again.has(key(1)));
  CHECK(again.has(key(0)));
}

TEST_CASE("block index: what was left is refused where it is damaged or contradicts itself") {
  Store last(2);
  for (std::uint64_t i = 0; i < 10; ++i) REQUIRE(last.put(i));
  const BlockIndex::Left left = last.index.leave();
  const auto refused = [&](auto&& change) {
    BlockIndex::Left wrong = left;
    change(wrong.tier(BlockMedium::kDdr));
    BlockIndex next(kSegment, 43);
    const auto done = next.adopt(wrong);
    return !done && done.error().code() == Errc::kCorrupt;
  };
  CHECK(refused([](auto& ddr) { ddr.copies[3].slot = ddr.copies[4].slot; }));
  CHECK(refused([](auto& ddr) { ddr.copies[3].slot = 8; }));
  CHECK(refused([](auto& ddr) { ddr.copies[3].area = AreaId(7); }));
  CHECK(refused([](auto& ddr) { ddr.copies[3].key = ddr.copies[4].key; }));
  CHECK(refused([](auto& ddr) { ddr.copies[3].model = ModelIndex(1); }));
  CHECK(refused([](auto& ddr) { ddr.copies[3].cost = 0; }));
  CHECK(refused([](auto& ddr) { ddr.areas[AreaId(1)] = 1; }));
  CHECK(refused([](auto& ddr) { ddr.areas[AreaId(1)] = 2 * kSegment; }));
  CHECK_FALSE(refused([](auto&) {}));
  auto encoded = encode({{"identity", "name", "owner", false, SessionId(1), left}});
  REQUIRE(encoded.ok());
  std::string bytes = std::move(*encoded);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    REQUIRE_FALSE(decode_left(std::as_bytes(std::span(bytes)).first(length)).ok());
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    REQUIRE_FALSE(decode_left(std::as_bytes(std::span(bytes))).ok());
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
  }
}

TEST_CASE("block index: random requests agree with a plain model of its policy") {
  test::for_each_seed(20, [](std::uint64_t seed) {
    struct Kept {
      std::uint64_t uses = 1;
      std::uint64_t worth = 0;
      int used = 0;  // the step
      BlockChecksum checksum{};
    };
    Prng random(seed);
    Store store(3);  // 24 slots
    std::map<std::uint64_t, Kept> stored;
    std::uint64_t clock = 0;
    std::list<std::pair<std::uint64_t, std::uint64_t>> evicted;  // keys with uses, 0: it came back
    std::uint64_t pinned_key = 0;
    std::optional<PinId> pin;
    std::uint64_t version = 0;
    int step = 0;
    const auto touch = [&](std::uint64_t number) {
      Kept& kept = stored.at(number);
      if (!pin || pinned_key != number) kept.uses = std::min<std::uint64_t>(kept.uses + 1, 3);
      kept.worth = clock + kept.uses;
      kept.used = step;
    };
    const auto evict = [&] {
      std::optional<std::uint64_t> victim;
      for (const auto& [number, kept] : stored) {
        if (pin && number == pinned_key) continue;
        if (victim && std::pair(kept.worth, kept.used) >=
                          std::pair(stored.at(*victim).worth, stored.at(*victim).used)) {
          continue;
        }
        victim = number;
      }
      clock = stored.at(*victim).worth;
      evicted.emplace_back(*victim, stored.at(*victim).uses);
      stored.erase(*victim);
      while (evicted.size() > 2 * stored.size() + 1) evicted.pop_front();
    };
    const auto come = [&](std::uint64_t number) {
      Kept kept;
      for (auto& [one, uses] : evicted) {
        if (one != number) continue;
        kept.uses = std::min<std::uint64_t>(kept.uses + uses, 3);
        uses = 0;
      }
      kept.worth = clock + kept.uses;
      kept.used = step;
      kept.checksum = {++version, number};
      stored[number] = kept;
    };
    for (; step < 3000; ++step) {
      const std::uint64_t number = random.below(40);
      switch (random.below(6)) {
        case 0: {
          const bool there = stored.count(number) > 0;
          CHECK(store.index.remove(key(number)) == there);
          stored.erase(number);
          if (pin && pinned_key == number) {
            store.index.unpin(*pin, kMine);
            pin.reset();
          }
          break;
        }
        case 1: {
          if (pin) store.index.unpin(*pin, kMine);
          pin.reset();
          const std::vector<BlockKey> chain{key(number)};
          const auto made = store.index.pin(chain, store.model, kMine, kStart + 1s);
          REQUIRE(made.count == stored.count(number));
          if (made.count == 0) break;
          touch(number);
          pin = made.pin;
          pinned_key = number;
          break;
        }
        case 2:
        case 3: {
          const auto found = store.place(number);
          REQUIRE(found.has_value() == (stored.count(number) > 0));
          if (!found) break;
          REQUIRE(found->checksum == stored.at(number).checksum);
          touch(number);
          break;
        }
        default: {
          const auto made = store.reserve(number);
          if (stored.count(number) > 0) {
            REQUIRE(made.answer == BlockIndex::Answer::kExists);
            touch(number);
            break;
          }
          REQUIRE(made.answer == BlockIndex::Answer::kReserved);
          if (stored.size() == 24) evict();
          come(number);
          REQUIRE(store.index.commit(made.place.id, kMine, stored.at(number).checksum));
          break;
        }
      }
      REQUIRE(store.index.blocks() == stored.size());
    }
    std::set<std::pair<std::uint64_t, std::uint64_t>> places;
    for (const auto& [number, kept] : stored) {
      const auto found = store.place(number);
      REQUIRE(found);
      CHECK(places.insert({found->segment.value(), found->offset_bytes}).second);
    }
  });
}
