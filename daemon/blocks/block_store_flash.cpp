// Blocks of tenants on flash: saved before they are evicted, loaded when they are wanted.
#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "daemon/blocks/block_store.hpp"

namespace ho::daemon {

namespace {

// A tenant's transfers in flight, together fewer than a session may have.
constexpr std::size_t kLoadsMax = 32;
// Matched blocks are loaded until one in so many bytes of the tenant's memory is pinned: others
// need the rest.
constexpr std::uint64_t kMatchedShare = 4;
constexpr std::size_t kSavesMax = BlockTier::kSizesMax;  ///< one for each size at least
static_assert(kLoadsMax + kSavesMax <= kStagesPerSessionMax);
// After a block could not be saved or loaded.
constexpr Duration kPause = std::chrono::seconds(1);
constexpr Duration kLongPause = std::chrono::minutes(1);  ///< the path's budget is used up

}  // namespace

void BlockStore::locate(SessionId session, std::uint32_t store, const std::vector<BlockKey>& keys,
                        Located answer) {
  const auto use = opened(session, store);
  if (!use) return answer(use.error());
  Tenant& tenant = *use->tenant;
  if (tenant.to_load.size() >= kToLoadMax) {
    return answer(Error(Errc::kBusy, std::to_string(tenant.to_load.size()) +
                                         " blocks of the tenant wait for flash"));
  }
  auto request = std::make_shared<Locating>();
  request->session = session;
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
  if (on_flash.empty()) return reply(tenant, *request);
  for (const auto& [block, at] : on_flash) {
    const auto [waiters, is_new] = tenant.waiters.try_emplace(block);
    if (is_new) tenant.to_load.push_back(block);
    waiters->second.push_back({request, at});
  }
  load_more(tenant);
}

Result<BlockIndex::Pinned> BlockStore::pin(SessionId session, std::uint32_t store,
                                           const std::vector<BlockKey>& keys, TimePoint until) {
  const auto use = opened(session, store);
  if (!use) return use.error();
  Tenant& tenant = *use->tenant;
  auto pinned = tenant.index.pin(keys, use->model, session, until);
  for (const BlockNumber block : pinned.on_flash) {
    if (tenant.matched.size() < kToLoadMax) tenant.matched.push_back(block);
  }
  load_more(tenant);
  return pinned;
}

/// Begins loads, until one has to wait for room.
void BlockStore::load_more(Tenant& tenant) {
  while (tenant.loads < kLoadsMax && !tenant.to_load.empty()) {
    const BlockNumber block = tenant.to_load.front();
    const auto load = wanted(tenant, block) ? begin_load(tenant, block) : BlockIndex::Load();
    if (!load) return;
    tenant.to_load.pop_front();
    if (load->answer == BlockIndex::Load::Answer::kBegun) {
      start_load(tenant, load->move);
    } else {
      tell(tenant, block, std::nullopt);  // it is gone, or all others are in use
    }
  }
  load_matched(tenant);
}

/// Loads what sessions have matched, as long as that costs no block and leaves room for others.
void BlockStore::load_matched(Tenant& tenant) {
  BlockIndex& index = tenant.index;
  const std::uint64_t share = index.areas(BlockMedium::kDdr) * area_bytes() / kMatchedShare;
  for (; tenant.loads < kLoadsMax && !tenant.matched.empty(); tenant.matched.pop_front()) {
    const BlockNumber block = tenant.matched.front();
    if (tenant.waiters.count(block) > 0 || !index.is_pinned_on_flash(block)) continue;
    if (index.pinned_ddr_bytes() >= share) return;
    auto load = index.load(block, BlockIndex::Victim::kNone);
    if (load.answer == BlockIndex::Load::Answer::kNoRoom) {
      load = index.load(block, BlockIndex::Victim::kSaved);
    }
    if (load.answer != BlockIndex::Load::Answer::kBegun) return;  // until some are saved
    tenant.waiters.try_emplace(block);
    start_load(tenant, load.move);
  }
}

void BlockStore::start_load(Tenant& tenant, const BlockIndex::Move& move) {
  tenant.loads += 1;
  start(tenant, move, StageDirection::kIn,
        [this, &tenant, block = move.block](const auto& done) { load_ended(tenant, block, done); });
}

/// Whether a session that asked for the block is still there.
bool BlockStore::wanted(const Tenant& tenant, BlockNumber block) const {
  const auto& waiters = tenant.waiters.at(block);
  return std::any_of(waiters.begin(), waiters.end(), [&](const Waiter& waiter) {
    return pool_.sessions().count(waiter.request->session) > 0;
  });
}

/// A load takes the slot of a block that is saved, and waits for the next save where there is none:
/// what is read must not cost what was never written. @return nullopt: it waits.
std::optional<BlockIndex::Load> BlockStore::begin_load(Tenant& tenant, BlockNumber block) {
  using Victim = BlockIndex::Victim;
  constexpr auto kNoRoom = BlockIndex::Load::Answer::kNoRoom;
  BlockIndex& index = tenant.index;
  auto load = index.load(block, Victim::kNone);
  if (load.answer != kNoRoom || !index.takes(load.length_bytes)) return load;
  if (grow(tenant, BlockMedium::kDdr, load.length_bytes)) return std::nullopt;
  load = index.load(block, Victim::kSaved);
  if (load.answer != kNoRoom) return load;
  save_ahead(tenant);
  const bool waits = tenant.saves[load.length_bytes] > 0 || tenant.loads > 0 ||
                     tenant.growth(BlockMedium::kFlash).growing;
  if (waits) return std::nullopt;
  load = index.load(block, Victim::kAny);
  if (load.answer == kNoRoom && recut(tenant, BlockMedium::kDdr, load.length_bytes)) {
    load = index.load(block, Victim::kNone);
  }
  return load;
}

void BlockStore::load_ended(Tenant& tenant, BlockNumber block, const Result<void>& done) {
  tenant.loads -= 1;
  auto how = BlockIndex::Loaded::kDone;
  if (!done) {
    const Errc code = done.error().code();
    const bool damaged = code == Errc::kCorrupt || code == Errc::kIo;
    how = damaged ? BlockIndex::Loaded::kLost : BlockIndex::Loaded::kNotNow;
    warn(tenant, "a block could not be read from flash", done.error());
  }
  tell(tenant, block, tenant.index.loaded(block, how));
  load_more(tenant);
  save_ahead(tenant);
}

/// A block has come to DDR, or could not: requests that waited for it only get their answers.
void BlockStore::tell(Tenant& tenant, BlockNumber block, const std::optional<BlockPlace>& place) {
  const auto waiting = tenant.waiters.extract(block);
  HO_CHECK(!waiting.empty());
  for (const Waiter& waiter : waiting.mapped()) {
    Locating& request = *waiter.request;
    tenant.index.count_load(request.model, block, place.has_value());
    request.places[waiter.at] = place;
    if (place) {
      tenant.index.hold(block);
      request.held.push_back(block);
    }
    request.loads -= 1;
    if (request.loads == 0) reply(tenant, request);
  }
}

void BlockStore::reply(Tenant& tenant, Locating& request) {
  for (const BlockNumber block : request.held) tenant.index.release(block);
  std::exchange(request.answer, nullptr)(request.places);
}

/// Saves the blocks that go next, where a tenant's segments are full.
void BlockStore::save_ahead(Tenant& tenant) {
  if (options_.flash_bytes == 0 || !tenant.session || may_grow(tenant, BlockMedium::kDdr)) return;
  const std::vector<std::uint64_t> sizes = tenant.index.sizes();
  for (const std::uint64_t block_bytes : sizes) {
    if (BlockTier::slot_bytes(block_bytes) > kStageBytesMax) continue;
    if (clock_.now() < tenant.no_save_until) return;
    // Blocks that are being saved keep their slots: there must be others to evict.
    const std::size_t most =
        std::clamp<std::size_t>(kSavesMax / sizes.size(), 1, tenant.index.ahead(block_bytes));
    std::size_t& saves = tenant.saves[block_bytes];
    if (saves >= most) continue;
    for (const BlockNumber block : tenant.index.unsaved(block_bytes, most - saves)) {
      const auto move = begin_save(tenant, block, block_bytes);
      if (!move) break;
      saves += 1;
      start(tenant, *move, StageDirection::kOut,
            [this, &tenant, block, block_bytes](const Result<void>& done) {
              save_ended(tenant, block, block_bytes, done);
            });
    }
  }
}

/// @return nullopt: there is no slot on flash, or not yet.
std::optional<BlockIndex::Move> BlockStore::begin_save(Tenant& tenant, BlockNumber block,
                                                       std::uint64_t block_bytes) {
  BlockIndex& index = tenant.index;
  if (auto move = index.save(block, BlockIndex::Evict::kNo)) return move;
  if (grow(tenant, BlockMedium::kFlash, block_bytes)) return std::nullopt;
  recut(tenant, BlockMedium::kFlash, block_bytes);
  return index.save(block, BlockIndex::Evict::kYes);
}

void BlockStore::save_ended(Tenant& tenant, BlockNumber block, std::uint64_t block_bytes,
                            const Result<void>& done) {
  tenant.saves[block_bytes] -= 1;
  tenant.index.saved(block, done.ok());
  if (!done) {
    const bool full = done.error().code() == Errc::kExhausted;
    tenant.no_save_until = clock_.now() + (full ? kLongPause : kPause);
    warn(tenant, "a block could not be written to flash", done.error());
  }
  load_more(tenant);
  save_ahead(tenant);
}

/// Logs, at most once in kPause for a tenant.
void BlockStore::warn(Tenant& tenant, const char* what, const Error& why) {
  if (clock_.now() < tenant.no_warning_until) return;
  tenant.no_warning_until = clock_.now() + kPause;
  log(LogLevel::kWarning, what, {{"tenant", tenant.name}, {"why", why.message()}});
}

/// Moves a block. `ended` is called with the tenant's blocks as they were, or not at all.
void BlockStore::start(Tenant& tenant, const BlockIndex::Move& move, StageDirection direction,
                       Staging::Done ended) {
  StageSpec spec;
  spec.direction = direction;
  spec.extent = move.extent.value();
  spec.extent_offset_bytes = move.extent_offset_bytes;
  spec.segment = SegmentId(move.segment.value());
  spec.segment_offset_bytes = move.segment_offset_bytes;
  spec.length_bytes = move.bytes;
  staging_.stage(*tenant.session, spec,
                 [this, key = tenant.key, generation = tenant.generation,
                  ended = std::move(ended)](const Result<void>& done) {
                   if (alive(key, generation) != nullptr) ended(done);
                 });
}

/// The tenant's blocks have ended. Requests that wait for some get misses.
void BlockStore::end_moves(Tenant& tenant) {
  tenant.saves.clear();
  tenant.loads = 0;
  tenant.to_load.clear();
  tenant.matched.clear();
  for (const auto& [block, waiting] : std::exchange(tenant.waiters, {})) {
    for (const Waiter& waiter : waiting) {
      Locating& request = *waiter.request;
      tenant.index.count_load(request.model, block, false);
      if (!request.answer) continue;
      request.held.clear();
      request.places.assign(request.places.size(), std::nullopt);
      reply(tenant, request);
    }
  }
}

}  // namespace ho::daemon
