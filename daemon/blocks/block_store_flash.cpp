// Blocks of tenants on flash: saved before they are evicted, loaded when they are wanted.
#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "daemon/blocks/block_store.hpp"

namespace ho::daemon {

namespace {

constexpr auto kFlash = BlockMedium::kFlash;
// A tenant's transfers in flight, together fewer than a session may have.
constexpr std::size_t kLoadsMax = 32;
constexpr std::size_t kSavesMax = 12;
static_assert(kLoadsMax + kSavesMax <= kStagesPerSessionMax);
/// After flash refused an extent, or a block could not be saved.
constexpr Duration kPause = std::chrono::seconds(1);

}  // namespace

void BlockStore::locate(SessionId session, std::uint32_t store, const std::vector<BlockKey>& keys,
                        Located answer) {
  const auto use = opened(session, store);
  if (!use) return answer(use.error());
  Tenant& tenant = *use->tenant;
  auto request = std::make_shared<Locating>();
  request->model = use->model;
  request->answer = std::move(answer);
  std::vector<std::pair<BlockNumber, std::size_t>> on_flash;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto found = tenant.index.get(keys[i], use->model);
    request->places.push_back(found ? found->place : std::nullopt);
    if (found && found->place) request->held.push_back(found->block);
    if (found && !found->place) on_flash.emplace_back(found->block, i);
  }
  if (on_flash.empty()) request->held.clear();
  for (const BlockNumber block : request->held) tenant.index.hold(block);
  request->loads = on_flash.size();
  if (on_flash.empty()) return this->answer(tenant, *request);
  for (const auto& [block, at] : on_flash) load(tenant, block, {request, at});
  load_more(tenant);
}

/// Loads a block, unless it is being loaded already.
void BlockStore::load(Tenant& tenant, BlockNumber block, const Waiter& waiter) {
  auto& waiters = tenant.waiters[block];
  if (waiters.empty()) tenant.to_load.push_back(block);
  waiters.push_back(waiter);
}

/// Begins loads. They take the slots of blocks that are saved, and wait for the next save where
/// there is none: what is read must not cost what was never written.
void BlockStore::load_more(Tenant& tenant) {
  while (tenant.loads < kLoadsMax && !tenant.to_load.empty()) {
    const BlockNumber block = tenant.to_load.front();
    auto load = tenant.index.load(block, BlockIndex::Victim::kSaved);
    if (load.answer == BlockIndex::Load::Answer::kNoRoom) {
      save_ahead(tenant);
      if (tenant.saves > 0 || tenant.flash_growing) return;
      load = tenant.index.load(block, BlockIndex::Victim::kAny);
    }
    tenant.to_load.pop_front();
    if (load.answer != BlockIndex::Load::Answer::kBegun) {
      tell(tenant, block, std::nullopt);  // it is gone, or all others are in use
      continue;
    }
    tenant.loads += 1;
    move(tenant, load.move, StageDirection::kIn);
  }
}

void BlockStore::load_ended(Tenant& tenant, BlockNumber block, const Result<void>& done) {
  tenant.loads -= 1;
  if (!done) {
    log(LogLevel::kWarning, "a block was lost: it could not be read from flash",
        {{"tenant", tenant.name}, {"why", done.error().message()}});
  }
  tell(tenant, block, tenant.index.loaded(block, done.ok()));
  load_more(tenant);
  save_ahead(tenant);
}

/// A block has come to DDR, or could not: requests that waited for it only get their answers.
void BlockStore::tell(Tenant& tenant, BlockNumber block, const std::optional<BlockPlace>& place) {
  const auto waiting = tenant.waiters.extract(block);
  HO_CHECK(!waiting.empty());
  for (const Waiter& waiter : waiting.mapped()) {
    Locating& request = *waiter.request;
    tenant.index.count_load(request.model, place.has_value());
    request.places[waiter.at] = place;
    if (place) {
      tenant.index.hold(block);
      request.held.push_back(block);
    }
    request.loads -= 1;
    if (request.loads == 0) answer(tenant, request);
  }
}

void BlockStore::answer(Tenant& tenant, Locating& request) {
  if (!request.answer) return;
  for (const BlockNumber block : request.held) tenant.index.release(block);
  std::exchange(request.answer, nullptr)(request.places);
}

/// Saves the blocks that go next, where a tenant's segments are full.
void BlockStore::save_ahead(Tenant& tenant) {
  if (options_.flash_bytes == 0 || !tenant.session || may_grow(tenant)) return;
  if (clock_.now() < tenant.no_save_until) return;
  for (const std::uint64_t block_bytes : tenant.index.sizes()) {
    if (BlockTier::slot_bytes(block_bytes) > kStageBytesMax) continue;
    if (tenant.saves > kSavesMax / 2) return;  // several at a time: looking for them takes a while
    for (const BlockNumber block : tenant.index.unsaved(block_bytes)) {
      if (tenant.saves == kSavesMax) break;
      const auto next = begin_save(tenant, block, block_bytes);
      if (!next) break;
      tenant.saves += 1;
      move(tenant, *next, StageDirection::kOut);
    }
  }
}

/// @return nullopt: there is no slot on flash, or not yet.
std::optional<BlockIndex::Move> BlockStore::begin_save(Tenant& tenant, BlockNumber block,
                                                       std::uint64_t block_bytes) {
  BlockIndex& index = tenant.index;
  auto next = index.save(block, BlockIndex::Evict::kNo);
  if (!next) {
    if (grow_flash(tenant, block_bytes)) return std::nullopt;
    next = index.save(block, BlockIndex::Evict::kYes);
  }
  const auto extent = next ? std::nullopt : index.coldest(kFlash);
  if (extent) {  // all of its own extents have blocks of other sizes
    index.drop_area(kFlash, *extent);
    index.add_area(kFlash, *extent, block_bytes);
    next = index.save(block, BlockIndex::Evict::kNo);
  }
  return next;
}

void BlockStore::save_ended(Tenant& tenant, BlockNumber block, const Result<void>& done) {
  tenant.saves -= 1;
  tenant.index.saved(block, done.ok());
  if (!done) {
    tenant.no_save_until = clock_.now() + kPause;
    log(LogLevel::kWarning, "a block could not be written to flash",
        {{"tenant", tenant.name}, {"why", done.error().message()}});
  }
  load_more(tenant);
  save_ahead(tenant);
}

void BlockStore::move(Tenant& tenant, const BlockIndex::Move& move, StageDirection direction) {
  StageSpec spec;
  spec.direction = direction;
  spec.extent = move.extent.value();
  spec.extent_offset_bytes = move.extent_offset_bytes;
  spec.segment = SegmentId(move.segment.value());
  spec.segment_offset_bytes = move.segment_offset_bytes;
  spec.length_bytes = move.bytes;
  staging_.stage(*tenant.session, spec,
                 [this, key = key_of(tenant), generation = tenant.generation, block = move.block,
                  direction](const Result<void>& done) {
                   Tenant* const same = alive(key, generation);
                   if (same == nullptr) return;
                   if (direction == StageDirection::kOut) return save_ended(*same, block, done);
                   load_ended(*same, block, done);
                 });
}

/// Begins to make room on flash. @return false: the tenant has to do with what it has.
bool BlockStore::grow_flash(Tenant& tenant, std::uint64_t block_bytes) {
  if (tenant.flash_growing) return true;
  if (clock_.now() < tenant.no_flash_growth_until) return false;
  const std::uint64_t extent_bytes = pool_.options().segment_bytes;
  if ((held_extents_ + 1) * extent_bytes <= options_.flash_bytes) {
    make_extent(tenant, block_bytes);
    return tenant.flash_growing;
  }
  Tenant* const from = giver(tenant, kFlash);
  if (from == nullptr) return false;
  take_extent(*from, tenant, block_bytes);
  return tenant.flash_growing;
}

void BlockStore::make_extent(Tenant& tenant, std::uint64_t block_bytes) {
  tenant.flash_growing = true;
  held_extents_ += 1;
  Staging::Wanted wanted;
  wanted.bytes = pool_.options().segment_bytes;
  staging_.allocate(*tenant.session, wanted,
                    [this, key = key_of(tenant), generation = tenant.generation,
                     block_bytes](const Result<FlashExtent>& made) {
                      Tenant* const same = alive(key, generation);
                      if (!made || same == nullptr) held_extents_ -= 1;
                      if (same == nullptr) return;
                      same->flash_growing = false;
                      if (!made) {
                        same->no_flash_growth_until = clock_.now() + kPause;
                        return load_more(*same);
                      }
                      same->index.add_area(kFlash, AreaId(made->id), block_bytes);
                      load_more(*same);
                      save_ahead(*same);
                    });
}

void BlockStore::take_extent(Tenant& from, Tenant& to, std::uint64_t block_bytes) {
  const auto extent = from.index.coldest(kFlash);
  if (!extent) {
    to.no_flash_growth_until = clock_.now() + kPause;
    return;
  }
  to.flash_growing = true;
  from.index.drop_area(kFlash, *extent);
  staging_.free(*from.session, extent->value(),
                [this, key = key_of(to), generation = to.generation, block_bytes](const auto&) {
                  held_extents_ -= 1;
                  Tenant* const same = alive(key, generation);
                  if (same != nullptr) make_extent(*same, block_bytes);
                });
}

/// The tenant's blocks have ended. Requests that wait for some get misses.
void BlockStore::end_flash(Tenant& tenant) {
  tenant.flash_growing = false;
  tenant.saves = 0;
  tenant.loads = 0;
  tenant.to_load.clear();
  for (auto& [block, waiting] : std::exchange(tenant.waiters, {})) {
    for (const Waiter& waiter : waiting) {
      waiter.request->held.clear();
      answer(tenant, *waiter.request);
    }
  }
}

}  // namespace ho::daemon
