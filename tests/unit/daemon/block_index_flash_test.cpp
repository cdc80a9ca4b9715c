#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/blocks/block_index.hpp"
#include "daemon/blocks/left_blocks.hpp"
#include "tests/support/seeds.hpp"

using namespace ho;
using namespace ho::daemon;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kArea = 2 * kMiB;
constexpr std::uint64_t kBlock = 256 * kKiB;  // eight an area
constexpr TimePoint kStart{};
constexpr auto kDdr = BlockMedium::kDdr;
constexpr auto kFlash = BlockMedium::kFlash;
constexpr auto kAny = BlockIndex::Victim::kAny;
constexpr auto kDone = BlockIndex::Loaded::kDone;
constexpr auto kLost = BlockIndex::Loaded::kLost;
constexpr auto kBegun = BlockIndex::Load::Answer::kBegun;
const SessionId kMine(1);

BlockKey key(std::uint64_t number) { return {number * 7919, number}; }

/// An index with memory: which value each slot has, so that what a place leads to can be compared.
/// Values are what the writer's checksum stands for.
struct Store {
  using Slot = std::pair<std::uint64_t, std::uint64_t>;  ///< area, offset
  BlockIndex index{kArea, 42};
  ModelIndex model = index.model("llama");
  std::map<Slot, std::uint64_t> ddr;
  std::map<Slot, std::uint64_t> flash;

  Store(std::uint64_t segments, std::uint64_t extents) {
    for (std::uint64_t i = 1; i <= segments; ++i) index.add_area(kDdr, AreaId(i), kBlock);
    for (std::uint64_t i = 1; i <= extents; ++i) index.add_area(kFlash, AreaId(100 + i), kBlock);
  }
  /// The store of the next daemon, with the same memory.
  Store(const Store& last, const BlockIndex::Left& left)
      : model(last.model), ddr(last.ddr), flash(last.flash) {
    REQUIRE(index.adopt(left).ok());
  }

  std::optional<BlockId> put(std::uint64_t number, std::uint64_t value) {
    const auto made =
        index.reserve({key(number), kBlock, 1, model, kMine}, BlockIndex::Evict::kYes, kStart);
    if (made.answer != BlockIndex::Answer::kReserved) return std::nullopt;
    ddr[{made.place.segment.value(), made.place.offset_bytes}] = value;
    REQUIRE(index.commit(made.place.id, kMine, {value, 0}));
    return made.place.id;
  }
  /// The place has the value that its checksum promises.
  void check(const BlockPlace& place) {
    REQUIRE(ddr.at({place.segment.value(), place.offset_bytes}) == place.checksum[0]);
  }
  void carry(const BlockIndex::Move& move, bool saves) {
    const Slot here{move.segment.value(), move.segment_offset_bytes};
    const Slot there{move.extent.value(), move.extent_offset_bytes};
    REQUIRE(move.bytes == kBlock);
    if (saves) {
      flash[there] = ddr.at(here);
    } else {
      ddr[here] = flash.at(there);
    }
  }
  /// Saves all that should be.
  std::size_t save_all() {
    std::size_t count = 0;
    for (const BlockNumber block : index.unsaved(kBlock, 64)) {
      const auto move = index.save(block, BlockIndex::Evict::kYes);
      if (!move) continue;
      carry(*move, true);
      index.saved(block, true);
      ++count;
    }
    return count;
  }
  /// @return the block's place, after loading it where it is on flash only.
  std::optional<BlockPlace> get(std::uint64_t number) {
    const auto found = index.get(key(number), model);
    if (!found || found->place) return found ? found->place : std::nullopt;
    const auto load = index.load(found->block, BlockIndex::Victim::kAny);
    if (load.answer != BlockIndex::Load::Answer::kBegun) return std::nullopt;
    carry(load.move, false);
    return index.loaded(found->block, kDone);
  }
  [[nodiscard]] const BlockFigures& figures() const { return index.figures().front().second; }
};

}  // namespace

TEST_CASE("blocks on flash: what goes next is saved, leaves DDR and comes back") {
  Store store(1, 2);
  for (std::uint64_t i = 0; i < 6; ++i) REQUIRE(store.put(i, i));
  CHECK(store.save_all() == 0);  // two slots are free: as many as are to be kept
  for (std::uint64_t i = 6; i < 8; ++i) REQUIRE(store.put(i, i));
  CHECK(store.save_all() == 2);  // 0 and 1
  CHECK(store.figures().flash_bytes == 2 * kBlock);
  for (std::uint64_t i = 8; i < 10; ++i) REQUIRE(store.put(i, i));
  CHECK(store.figures().evictions == 0);
  CHECK(store.figures().blocks == 10);
  CHECK(store.figures().ddr_bytes == 8 * kBlock);
  const auto found = store.index.get(key(0), store.model);
  REQUIRE(found);
  CHECK_FALSE(found->place);
  CHECK(store.index.load(found->block, BlockIndex::Victim::kSaved).answer ==
        BlockIndex::Load::Answer::kNoRoom);  // nothing in DDR is saved
  const auto back = store.get(0);
  REQUIRE(back);
  store.check(*back);
  CHECK(back->checksum == BlockChecksum{0, 0});
  CHECK(store.figures().evictions == 1);  // the room came from 2, which nobody had saved
  CHECK_FALSE(store.index.has(key(2)));
}

TEST_CASE("blocks on flash: what a job says of a block's former slot has no effect") {
  Store store(1, 1);
  const auto before = store.put(0, 7);
  REQUIRE(before);
  for (std::uint64_t i = 1; i < 8; ++i) REQUIRE(store.put(i, i));
  REQUIRE(store.save_all() > 0);
  REQUIRE(store.put(8, 8));
  store.index.drop(*before, kMine);  // it is on flash
  const auto back = store.get(0);
  REQUIRE(back);
  CHECK(back->id != *before);
  store.index.drop(*before, kMine);
  CHECK(store.index.has(key(0)));
  store.index.drop(back->id, kMine);
  CHECK_FALSE(store.index.has(key(0)));
}

TEST_CASE("blocks on flash: a save that fails costs nothing, a load that fails the block") {
  Store store(1, 1);
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(store.put(i, i));
  const auto first = store.index.unsaved(kBlock, 1).front();
  REQUIRE(store.index.save(first, BlockIndex::Evict::kNo));
  store.index.saved(first, false);
  CHECK(store.figures().flash_bytes == 0);
  CHECK(store.save_all() == 2);
  REQUIRE(store.put(8, 8));
  const auto found = store.index.get(key(0), store.model);
  REQUIRE((found && !found->place));
  REQUIRE(store.index.load(found->block, kAny).answer == kBegun);
  CHECK(store.index.has(key(0)));
  CHECK_FALSE(store.index.loaded(found->block, kLost));
  CHECK_FALSE(store.index.has(key(0)));
  for (std::uint64_t i = 20; i < 60; ++i) {  // no slot was lost
    REQUIRE(store.put(i, i));
    store.save_all();
  }
  CHECK(store.figures().ddr_bytes == 8 * kBlock);
  CHECK(store.figures().flash_bytes == 8 * kBlock);
}

TEST_CASE("blocks on flash: a block that is removed while it moves frees both slots at its end") {
  Store store(1, 1);
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(store.put(i, i));
  const auto moving = store.index.unsaved(kBlock, 1).front();
  REQUIRE(store.index.save(moving, BlockIndex::Evict::kNo));
  REQUIRE(store.index.remove(key(0)));
  store.index.saved(moving, true);
  CHECK(store.figures().flash_bytes == 0);
  CHECK(store.index.coldest(kFlash));  // the only extent, without a block
  REQUIRE(store.put(10, 10));
  CHECK(store.figures().evictions == 0);
  REQUIRE(store.save_all() > 0);
  REQUIRE(store.put(11, 11));
  const auto found = store.index.get(key(1), store.model);
  REQUIRE((found && !found->place));
  REQUIRE(store.index.load(found->block, kAny).answer == kBegun);
  REQUIRE(store.index.remove(key(1)));
  CHECK_FALSE(store.index.loaded(found->block, kDone));
  CHECK_FALSE(store.index.has(key(1)));
}

TEST_CASE("blocks on flash: a pinned one stays there, and extents go with what is only in them") {
  Store store(1, 1);
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(store.put(i, i));
  REQUIRE(store.save_all() > 0);
  REQUIRE(store.put(8, 8));
  const std::vector<BlockKey> chain{key(0)};
  const auto pinned = store.index.pin(chain, store.model, kMine, kStart + 10s);
  REQUIRE(pinned.count == 1);
  CHECK_FALSE(store.index.coldest(kFlash));
  for (std::uint64_t i = 20; i < 60; ++i) {
    REQUIRE(store.put(i, i));
    store.save_all();
  }
  REQUIRE(store.get(0));
  store.index.unpin(pinned.pin, kMine);
  const auto extent = store.index.coldest(kFlash);
  REQUIRE(extent);
  const std::uint64_t in_ddr = store.figures().ddr_bytes;
  store.index.drop_area(kFlash, *extent);
  CHECK(store.figures().ddr_bytes == in_ddr);
  CHECK(store.figures().bytes == in_ddr);
  CHECK(store.figures().flash_bytes == 0);
}

TEST_CASE("blocks on flash: the next daemon finds the copies of both tiers, and goes on") {
  Store last(1, 2);
  for (std::uint64_t i = 0; i < 14; ++i) {
    REQUIRE(last.put(i, i));
    last.save_all();
  }
  REQUIRE(last.put(14, 14));
  const auto moving = last.index.unsaved(kBlock, 1);
  REQUIRE(moving.size() == 1);
  REQUIRE(last.index.save(moving.front(), BlockIndex::Evict::kNo));  // a copy that is not ready
  const auto bytes = encode({{"id", "name", "owner", false, kMine, last.index.leave()}});
  REQUIRE(bytes.ok());
  const auto left = decode_left(std::as_bytes(std::span(*bytes)));
  REQUIRE(left.ok());
  const BlockIndex::Left& index = left->front().index;
  REQUIRE(index.tier(kFlash).copies.size() * kBlock == last.figures().flash_bytes);
  Store next(last, index);
  CHECK(next.figures().blocks == last.figures().blocks);
  CHECK(next.figures().bytes == last.figures().bytes);
  CHECK(next.figures().ddr_bytes == last.figures().ddr_bytes);
  CHECK(next.figures().flash_bytes == last.figures().flash_bytes);
  CHECK(next.index.unsaved(kBlock, 16).empty());  // where flash is full, a save evicts others
  for (std::uint64_t i = 0; i < 15; ++i) {
    CHECK(next.index.has(key(i)) == last.index.has(key(i)));
  }
  for (std::uint64_t i = 0; i < 15; ++i) {  // a load may evict what nobody saved
    if (const auto place = next.get(i)) next.check(*place);
  }
  for (std::uint64_t i = 20; i < 60; ++i) {  // every slot is free or goes
    REQUIRE(next.put(i, i));
    next.save_all();
  }
  CHECK(next.figures().ddr_bytes == 8 * kBlock);
  CHECK(next.figures().flash_bytes == 16 * kBlock);
}

TEST_CASE("blocks on flash: extents that are lost cost the next daemon what is only there") {
  Store last(1, 1);
  for (std::uint64_t i = 0; i < 12; ++i) {
    REQUIRE(last.put(i, i));
    last.save_all();
  }
  REQUIRE(last.figures().bytes > last.figures().ddr_bytes);
  BlockIndex::Left left = last.index.leave();
  BlockIndex::Left wrong = left;
  wrong.tier(kFlash).copies.front().checksum[0] += 1;
  wrong.tier(kFlash).copies.front().key = wrong.tier(kDdr).copies.front().key;
  CHECK(BlockIndex(kArea, 43).adopt(wrong).error().code() == Errc::kCorrupt);
  left.drop_areas(kFlash, {AreaId(101)});
  Store next(last, left);
  CHECK(next.figures().ddr_bytes == last.figures().ddr_bytes);
  CHECK(next.figures().bytes == last.figures().ddr_bytes);
  CHECK(next.index.areas(kFlash) == 0);
}

TEST_CASE("blocks on flash: where not all is left, it is what was used last") {
  constexpr std::size_t kAll = SIZE_MAX;
  Store last(1, 4);  // the last extent has no copies
  for (std::uint64_t i = 0; i < 26; ++i) {
    REQUIRE(last.put(i, i));
    last.save_all();
  }
  const BlockIndex::Left all = last.index.leave();
  const auto& copies = all.tier(kFlash).copies;
  REQUIRE(all.tier(kFlash).areas.size() == 4);
  REQUIRE(copies.size() >= 17);
  const AreaId newest = copies.back().area;
  const auto areas = [&](std::size_t areas_max, std::size_t copies_max) {
    const BlockIndex::Left left = last.index.leave({areas_max, copies_max});
    CHECK(left.tier(kDdr).copies.size() == all.tier(kDdr).copies.size());
    std::map<AreaId, std::size_t> out;
    for (const auto& [id, block_bytes] : left.tier(kFlash).areas) out[id] = 0;
    for (const auto& copy : left.tier(kFlash).copies) out.at(copy.area) += 1;
    Store next(last, left);  // it is sound
    CHECK(next.index.areas(kFlash) == out.size());
    return out;
  };
  CHECK(areas(kAll, copies.size()).size() == 4);
  CHECK(areas(0, kAll).empty());
  const auto one = areas(1, kAll);
  REQUIRE(one.size() == 1);
  CHECK(one.count(newest) == 1);
  CHECK(areas(3, kAll).count(newest) == 1);
  std::size_t left = 0;
  for (const auto& [id, count] : areas(kAll, copies.size() - 1)) left += count;
  CHECK(left < copies.size());
  CHECK(left >= 8);
  for (const auto& [id, count] : areas(kAll, 0)) CHECK(count == 0);
}

TEST_CASE("blocks on flash: under random requests and moves every place has its block's bytes") {
  test::for_each_seed(20, [](std::uint64_t seed) {
    Prng random(seed);
    Store store(2, 3);
    std::map<std::uint64_t, std::uint64_t> value;  // by key, as it was put last
    std::deque<BlockIndex::Move> saving;
    std::deque<BlockIndex::Move> loading;
    std::map<BlockNumber, std::uint64_t> loading_key;
    std::optional<PinId> pin;
    std::uint64_t version = 0;
    for (int step = 0; step < 4000; ++step) {
      const std::uint64_t number = random.below(60);
      switch (random.below(9)) {
        case 0: store.index.remove(key(number)); break;
        case 1: {
          if (pin) store.index.unpin(*pin, kMine);
          const std::vector<BlockKey> chain{key(number), key(random.below(60))};
          REQUIRE(store.index.pinned_ddr_bytes() == 0);
          pin = store.index.pin(chain, store.model, kMine, kStart + 1s).pin;
          REQUIRE(store.index.pinned_ddr_bytes() <= chain.size() * kBlock);
          break;
        }
        case 2: {
          if (saving.empty()) break;
          store.carry(saving.front(), true);
          store.index.saved(saving.front().block, random.below(8) > 0);
          saving.pop_front();
          break;
        }
        case 3: {
          if (loading.empty()) break;
          using Loaded = BlockIndex::Loaded;
          const Loaded done =
              std::array{kDone, kDone, kDone, Loaded::kNotNow, kLost}[random.below(5)];
          store.carry(loading.front(), false);
          const BlockNumber block = loading.front().block;
          if (const auto place = store.index.loaded(block, done)) store.check(*place);
          loading_key.erase(block);
          loading.pop_front();
          break;
        }
        case 4:
        case 5: {
          const auto found = store.index.get(key(number), store.model);
          if (!found) break;
          if (found->place) {
            store.check(*found->place);
            REQUIRE(found->place->checksum[0] == value.at(number));
            break;
          }
          if (loading_key.count(found->block) > 0) break;
          const auto victim = std::array{BlockIndex::Victim::kNone, BlockIndex::Victim::kSaved,
                                         kAny}[random.below(3)];
          const auto load = store.index.load(found->block, victim);
          REQUIRE(load.answer != BlockIndex::Load::Answer::kGone);
          if (load.answer != kBegun) break;
          loading.push_back(load.move);
          loading_key[found->block] = number;
          break;
        }
        case 6: {
          const auto unsaved = store.index.unsaved(kBlock, 3);
          if (unsaved.empty()) break;
          const auto move = store.index.save(unsaved.front(), BlockIndex::Evict::kYes);
          if (move) saving.push_back(*move);
          break;
        }
        default: {
          if (store.put(number, version + 1)) value[number] = ++version;
          break;
        }
      }
    }
    while (!saving.empty()) {
      store.index.saved(saving.front().block, true);
      saving.pop_front();
    }
    while (!loading.empty()) {
      static_cast<void>(store.index.loaded(loading.front().block, kLost));
      loading.pop_front();
    }
    if (pin) store.index.unpin(*pin, kMine);
    CHECK(store.index.pinned_ddr_bytes() == 0);
    while (store.index.areas(kDdr) > 0) store.index.drop_area(kDdr, *store.index.coldest(kDdr));
    while (store.index.areas(kFlash) > 0) {
      store.index.drop_area(kFlash, *store.index.coldest(kFlash));
    }
    CHECK(store.index.blocks() == 0);
    CHECK(store.figures().bytes == 0);
    CHECK(store.figures().ddr_bytes == 0);
    CHECK(store.figures().flash_bytes == 0);
  });
}
