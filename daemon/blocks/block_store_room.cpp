// How tenants get segments and extents, and give them to each other.
#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/system/random.hpp"
#include "daemon/blocks/block_store.hpp"

namespace ho::daemon {

namespace {

/// After there was none to have: evicting is faster than asking or searching at each block.
constexpr Duration kRoomPause = std::chrono::seconds(1);

}  // namespace

std::uint64_t BlockStore::areas_max(BlockMedium medium) const {
  return (medium == BlockMedium::kDdr ? options_.capacity_bytes : options_.flash_bytes) /
         area_bytes();
}

/// Whether the owner may have one area more.
bool BlockStore::within_quota(const Tenant& tenant, BlockMedium medium) const {
  if (!quota_of_ || tenant.limit == Limit::kNone) return true;
  const Quota quota = quota_of_(tenant.owner);
  if (medium != BlockMedium::kDdr) {
    return quota.flash_used <= quota.flash_bytes &&
           quota.flash_bytes - quota.flash_used >= area_bytes();
  }
  std::uint64_t held = 1;
  for (const auto& [key, one] : tenants_) {
    if (one->owner != tenant.owner) continue;
    held += one->index.areas(BlockMedium::kDdr) + (one->growth(BlockMedium::kDdr).growing ? 1 : 0);
  }
  return held <= quota.segment_bytes / area_bytes();
}

/// Whether the tenant may ask for one more, of the store's own or of another tenant's.
bool BlockStore::may_grow(const Tenant& tenant, BlockMedium medium) const {
  if (clock_.now() < tenant.growth(medium).not_until || !pool_.check_open()) return false;
  const bool any = held(medium) < areas_max(medium) || giver(tenant, medium) != nullptr;
  return any && within_quota(tenant, medium);
}

/// Begins to make room, after which resume() follows. @return false: the tenant has to do with
/// what it has.
bool BlockStore::grow(Tenant& tenant, BlockMedium medium, std::uint64_t block_bytes) {
  Growth& growth = tenant.growth(medium);
  if (growth.growing) return true;
  if (!may_grow(tenant, medium) || !ensure_session(tenant)) return false;
  const bool full = held(medium) == areas_max(medium);
  Tenant* const from = full || growth.refused ? giver(tenant, medium) : nullptr;
  growth.asking = true;
  if (from != nullptr) {
    take_area(*from, tenant, medium, block_bytes);
  } else {
    make_area(tenant, medium, block_bytes);
  }
  growth.asking = false;
  return growth.growing;  // a refusal may have come at once
}

bool BlockStore::ensure_session(Tenant& tenant) {
  if (tenant.session) return true;
  SessionSpec spec;
  spec.name = "blocks of " + tenant.name;
  spec.peer = "the block store";
  spec.owner = tenant.name;
  spec.token = random_bytes(kSessionTokenBytes);
  const auto session = pool_.open_session(std::move(spec), clock_.now());
  if (session) tenant.session = *session;
  return session.ok();
}

void BlockStore::make_area(Tenant& tenant, BlockMedium medium, std::uint64_t block_bytes) {
  tenant.growth(medium).growing = true;
  held(medium) += 1;
  const auto made = [this, key = tenant.key, generation = tenant.generation, medium,
                     block_bytes](std::optional<AreaId> area) {
    Tenant* const same = alive(key, generation);
    if (!area || same == nullptr) held(medium) -= 1;  // with its session, if it was made
    if (same != nullptr) area_made(*same, medium, block_bytes, area);
  };
  if (medium == BlockMedium::kDdr) {
    Grants::Spec spec;
    spec.session = *tenant.session;
    spec.bytes = area_bytes();
    spec.driver = Grants::kUnexposed;
    grants_.make(spec, [made](const Result<std::vector<GrantedSegment>>& granted) {
      made(granted ? std::optional(AreaId(granted->front().id.value())) : std::nullopt);
    });
    return;
  }
  Staging::Wanted wanted;
  wanted.bytes = area_bytes();
  wanted.owner = tenant.owner;
  if (quota_of_ && tenant.limit == Limit::kQuota) {
    wanted.owner_bytes_max = quota_of_(tenant.owner).flash_bytes;
  }
  staging_.allocate(*tenant.session, wanted, [made](const Result<FlashExtent>& extent) {
    made(extent ? std::optional(AreaId(extent->id)) : std::nullopt);
  });
}

void BlockStore::area_made(Tenant& tenant, BlockMedium medium, std::uint64_t block_bytes,
                           std::optional<AreaId> area) {
  Growth& growth = tenant.growth(medium);
  growth.growing = false;
  growth.refused = !area;
  if (area) {
    tenant.index.add_area(medium, *area, block_bytes);
  } else {
    growth.not_until = clock_.now() + kRoomPause;
  }
  if (!growth.asking) resume(tenant);  // else nothing waits yet
}

/// The tenant that has most, if that is more than an equal share, and the taker has less. After a
/// refusal the shares are of what the tenants have.
BlockStore::Tenant* BlockStore::giver(const Tenant& taker, BlockMedium medium) const {
  std::uint64_t users = 0;
  Tenant* most = nullptr;
  for (const auto& [key, tenant] : tenants_) {
    const std::size_t areas = tenant->index.areas(medium);
    if (areas > 0 || tenant.get() == &taker) ++users;
    if (most == nullptr || areas > most->index.areas(medium)) most = tenant.get();
  }
  const std::uint64_t all = taker.growth(medium).refused ? held(medium) : areas_max(medium);
  const std::uint64_t share = std::max<std::uint64_t>(all / users, 1);
  const bool may_take = taker.index.areas(medium) < share && most->index.areas(medium) > share;
  return may_take ? most : nullptr;
}

void BlockStore::take_area(Tenant& from, Tenant& to, BlockMedium medium,
                           std::uint64_t block_bytes) {
  const auto area = from.index.coldest(medium);
  if (!area) {  // all are in use; the search takes too long to repeat it for each block
    to.growth(medium).not_until = clock_.now() + kRoomPause;
    return;
  }
  to.growth(medium).growing = true;
  from.index.drop_area(medium, *area);
  const auto ended = [this, key = to.key, generation = to.generation, medium, block_bytes] {
    held(medium) -= 1;
    Tenant* const same = alive(key, generation);
    if (same != nullptr) make_area(*same, medium, block_bytes);
  };
  if (medium == BlockMedium::kDdr) {
    const SegmentId segment(area->value());
    HO_CHECK(pool_.release(*from.session, {segment}).ok());
    grants_.end({segment}, ended);
  } else {
    staging_.free(*from.session, area->value(), [ended](const auto&) { ended(); });
  }
}

/// Gives one of the tenant's own areas to blocks of another size, in place of evicting one of them,
/// if it was not used for longer; or where none of them can go.
bool BlockStore::recut(Tenant& tenant, BlockMedium medium, std::uint64_t block_bytes) {
  const bool evicts = tenant.index.has_victim(medium, block_bytes);
  Growth::NoRecut& last = tenant.growth(medium).no_recut[evicts ? 0 : 1];
  const std::size_t reservations = medium == BlockMedium::kDdr ? tenant.index.reservations() : 0;
  const bool ended = last.reservations > 0 && reservations <= last.reservations / 2;
  if (clock_.now() < last.until && !ended) return false;
  const auto area =
      evicts ? tenant.index.colder(medium, block_bytes) : tenant.index.coldest(medium);
  if (!area) {
    last = {clock_.now() + kRoomPause, reservations};
    return false;
  }
  tenant.index.drop_area(medium, *area);
  tenant.index.add_area(medium, *area, block_bytes);
  return true;
}

}  // namespace ho::daemon
