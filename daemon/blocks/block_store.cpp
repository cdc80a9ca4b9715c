#include "daemon/blocks/block_store.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/random.hpp"
#include "common/base/units.hpp"

namespace ho::daemon {

namespace {

constexpr auto kDdr = BlockMedium::kDdr;
constexpr std::size_t kNameBytesMax = 255;
/// After the pool refused a segment: evicting is faster than asking at each block.
constexpr Duration kGrowthPause = std::chrono::seconds(1);

}  // namespace

BlockStore::BlockStore(Pool& pool, Grants& grants, Staging& staging, const Clock& clock,
                       Options options)
    : pool_(pool), grants_(grants), staging_(staging), clock_(clock), options_(options) {
  HO_CHECK(options_.capacity_bytes % pool.options().segment_bytes == 0);
  HO_CHECK(options_.flash_bytes % pool.options().segment_bytes == 0);
}

Result<std::uint32_t> BlockStore::open(SessionId session, const TenantSpec& spec,
                                       const std::string& model, Limit limit) {
  HO_CHECK(pool_.sessions().count(session) == 1);
  if (auto ok = check_tenant(spec); !ok) return ok.error().at("tenant");
  if (model.size() > kNameBytesMax) {
    return Error(Errc::kInvalidArgument, "model: at most 255 bytes");
  }
  const std::string key = tenant_key(spec);
  const auto mine = sessions_.find(session);
  if (mine != sessions_.end() && mine->second.size() >= kStoresPerSessionMax) {
    return Error(Errc::kExhausted, "the session has opened " +
                                       std::to_string(kStoresPerSessionMax) +
                                       " block stores, the limit");
  }
  auto found = tenants_.find(key);
  if (found == tenants_.end()) {
    if (tenants_.size() >= kTenantsMax) {
      return Error(Errc::kExhausted,
                   "the node has " + std::to_string(kTenantsMax) + " tenants, the limit");
    }
    auto tenant =
        std::make_unique<Tenant>(tenant_label(spec), pool_.options().segment_bytes, options_.salt);
    tenant->generation = ++generations_;
    tenant->owner = spec.owner;
    tenant->limit = limit;
    found = tenants_.emplace(key, std::move(tenant)).first;
  }
  auto& opened = sessions_[session];
  opened.push_back({found->second.get(), found->second->index.model(model)});
  return static_cast<std::uint32_t>(opened.size() - 1);
}

Result<BlockStore::Opened> BlockStore::opened(SessionId session, std::uint32_t store) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || store >= found->second.size()) {
    return Error(Errc::kNotFound, "the session has not opened this block store");
  }
  return found->second[store];
}

Result<BlockStore::Use> BlockStore::find(SessionId session, std::uint32_t store) const {
  const auto use = opened(session, store);
  if (!use) return use.error();
  return Use{session, use->model, &use->tenant->index};
}

void BlockStore::attach(SessionId session, std::uint32_t store, const std::string& driver,
                        const std::vector<SegmentId>& segments, Grants::Made answer) {
  const auto use = opened(session, store);
  if (!use) return answer(use.error());
  std::vector<SegmentId> own;
  for (const SegmentId id : segments) {
    if (use->tenant->index.has_area(kDdr, AreaId(id.value()))) own.push_back(id);
  }
  grants_.share({session, driver, transport::Rights::kReadWrite, std::move(own)},
                std::move(answer));
}

void BlockStore::reserve(SessionId session, std::uint32_t store, std::vector<Wanted> wanted,
                         Reserved answer) {
  const auto use = opened(session, store);
  if (!use) return answer(use.error());
  for (const Wanted& one : wanted) {
    if (!use->tenant->index.takes(one.length_bytes) || one.cost == 0) {
      return answer(
          Error(Errc::kInvalidArgument, "a block has 4096 bytes to " +
                                            std::to_string(pool_.options().segment_bytes) +
                                            ", a tenant has blocks of at most " +
                                            std::to_string(BlockTier::kSizesMax) + " sizes"));
    }
  }
  go_on(*use->tenant, {session, use->model, std::move(wanted), {}, std::move(answer)});
}

/// Reserves one after the other, until a segment is needed that may come.
void BlockStore::go_on(Tenant& tenant, Reserving reserving) {
  if (pool_.sessions().count(reserving.session) == 0) {
    return reserving.answer(Error(Errc::kNotFound, "the session ended meanwhile"));
  }
  const TimePoint now = clock_.now();
  while (reserving.made.size() < reserving.wanted.size()) {
    const Wanted& next = reserving.wanted[reserving.made.size()];
    const BlockIndex::Want want{next.key, next.length_bytes, next.cost, reserving.model,
                                reserving.session};
    auto made = tenant.index.reserve(want, BlockIndex::Evict::kNo, now);
    if (made.answer == BlockIndex::Answer::kNoRoom) {
      if (tenant.growing || grow(tenant, next.length_bytes)) {
        tenant.waiting.push_back(std::move(reserving));
        return;
      }
      made = tenant.index.reserve(want, BlockIndex::Evict::kYes, now);
    }
    if (made.answer == BlockIndex::Answer::kNoRoom && recut(tenant, next.length_bytes)) {
      made = tenant.index.reserve(want, BlockIndex::Evict::kNo, now);
    }
    reserving.made.push_back(made);
  }
  reserving.answer(reserving.made);
  save_ahead(tenant);
}

void BlockStore::resume(Tenant& tenant) {
  tenant.growing = false;
  for (Reserving& waiting : std::exchange(tenant.waiting, {})) go_on(tenant, std::move(waiting));
}

/// Gives the tenant's own coldest segment to blocks of another size.
bool BlockStore::recut(Tenant& tenant, std::uint64_t block_bytes) {
  if (clock_.now() < tenant.no_recut_until) return false;
  const auto segment = tenant.index.coldest(kDdr);
  if (!segment) {
    tenant.no_recut_until = clock_.now() + kGrowthPause;
    return false;
  }
  tenant.index.drop_area(kDdr, *segment);
  tenant.index.add_area(kDdr, *segment, block_bytes);
  return true;
}

/// Whether the owner may have one segment more.
bool BlockStore::within_quota(const Tenant& tenant) const {
  if (!quota_of_ || tenant.limit == Limit::kNone) return true;
  const std::uint64_t segments = quota_of_(tenant.owner) / pool_.options().segment_bytes;
  std::uint64_t held = 1;
  for (const auto& [key, one] : tenants_) {
    if (one->owner != tenant.owner) continue;
    held += one->index.areas(kDdr) + (one->growing ? 1 : 0);
  }
  return held <= segments;
}

/// Begins to make room. @return false: the tenant has to do with what it has.
bool BlockStore::grow(Tenant& tenant, std::uint64_t block_bytes) {
  if (clock_.now() < tenant.no_growth_until || !pool_.check_open()) return false;
  if (!within_quota(tenant)) return false;
  const std::uint64_t segment_bytes = pool_.options().segment_bytes;
  if (!tenant.session) {
    SessionSpec spec;
    spec.name = "blocks of " + tenant.name;
    spec.peer = "the block store";
    spec.owner = tenant.name;
    spec.token = random_bytes(kSessionTokenBytes);
    const auto session = pool_.open_session(std::move(spec), clock_.now());
    if (!session) return false;
    tenant.session = *session;
  }
  if ((held_segments_ + 1) * segment_bytes <= options_.capacity_bytes) {
    make_segment(tenant, block_bytes);
    return tenant.growing;  // a refusal may have come at once
  }
  Tenant* const from = giver(tenant, kDdr);
  if (from == nullptr) return false;
  take_segment(*from, tenant, block_bytes);
  return tenant.growing;
}

void BlockStore::make_segment(Tenant& tenant, std::uint64_t block_bytes) {
  tenant.growing = true;
  held_segments_ += 1;
  Grants::Spec spec;
  spec.session = *tenant.session;
  spec.bytes = pool_.options().segment_bytes;
  spec.driver = Grants::kUnexposed;
  grants_.make(spec, [this, key = key_of(tenant), generation = tenant.generation,
                      block_bytes](const Result<std::vector<GrantedSegment>>& made) {
    Tenant* const same = alive(key, generation);
    if (!made || same == nullptr) held_segments_ -= 1;  // with its session, if it was made
    if (same == nullptr) return;
    if (made) {
      same->index.add_area(kDdr, AreaId(made->front().id.value()), block_bytes);
    } else {
      same->no_growth_until = clock_.now() + kGrowthPause;
    }
    resume(*same);
  });
}

/// Whether the tenant gets a segment without another's loss.
bool BlockStore::may_grow(const Tenant& tenant) const {
  const std::uint64_t next_bytes = (held_segments_ + 1) * pool_.options().segment_bytes;
  return next_bytes <= options_.capacity_bytes && within_quota(tenant) &&
         clock_.now() >= tenant.no_growth_until;
}

/// The tenant that has most, if that is more than an equal share, and the taker has less.
BlockStore::Tenant* BlockStore::giver(const Tenant& taker, BlockMedium medium) const {
  const std::uint64_t bytes = medium == kDdr ? options_.capacity_bytes : options_.flash_bytes;
  const std::uint64_t all = bytes / pool_.options().segment_bytes;
  std::uint64_t users = 0;
  Tenant* most = nullptr;
  for (const auto& [key, tenant] : tenants_) {
    const std::size_t areas = tenant->index.areas(medium);
    if (areas > 0 || tenant.get() == &taker) ++users;
    if (most == nullptr || areas > most->index.areas(medium)) most = tenant.get();
  }
  const std::uint64_t share = std::max<std::uint64_t>(all / users, 1);
  const bool may_take = taker.index.areas(medium) < share && most->index.areas(medium) > share;
  return may_take ? most : nullptr;
}

void BlockStore::take_segment(Tenant& from, Tenant& to, std::uint64_t block_bytes) {
  const auto segment = from.index.coldest(kDdr);
  if (!segment) {  // all are pinned; the search takes too long to repeat it for each block
    to.no_growth_until = clock_.now() + kGrowthPause;
    return;
  }
  to.growing = true;
  from.index.drop_area(kDdr, *segment);
  const SegmentId id(segment->value());
  HO_CHECK(pool_.release(*from.session, {id}).ok());
  grants_.end({id}, [this, key = key_of(to), generation = to.generation, block_bytes] {
    held_segments_ -= 1;
    Tenant* const same = alive(key, generation);
    if (same != nullptr) make_segment(*same, block_bytes);
  });
}

const std::string& BlockStore::key_of(const Tenant& tenant) const {
  const auto found = std::find_if(tenants_.begin(), tenants_.end(),
                                  [&](const auto& one) { return one.second.get() == &tenant; });
  HO_CHECK(found != tenants_.end());
  return found->first;
}

/// The tenant, if it was not cleared since.
BlockStore::Tenant* BlockStore::alive(const std::string& key, std::uint64_t generation) const {
  const auto found = tenants_.find(key);
  const bool same = found != tenants_.end() && found->second->generation == generation;
  return same ? found->second.get() : nullptr;
}

void BlockStore::tick(TimePoint now) {
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    if (pool_.sessions().count(at->first) > 0) {
      ++at;
      continue;
    }
    for (const Opened& one : at->second) one.tenant->index.end_session(at->first);
    at = sessions_.erase(at);
  }
  for (auto& [key, tenant] : tenants_) {
    tenant->index.tick(now);
    if (!tenant->session) continue;
    if (pool_.draining() || pool_.sessions().count(*tenant->session) == 0) {
      clear(*tenant);
    } else {
      pool_.renew(*tenant->session, now);
      save_ahead(*tenant);
    }
  }
  // A tenant without a block and without a job leaves nothing behind.
  for (auto at = tenants_.begin(); at != tenants_.end();) {
    Tenant& tenant = *at->second;
    const bool used = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& session) {
      return std::any_of(session.second.begin(), session.second.end(),
                         [&](const Opened& one) { return one.tenant == &tenant; });
    });
    if (used || tenant.growing || tenant.index.blocks() > 0) {
      ++at;
      continue;
    }
    clear(tenant);
    for (const auto& [model, figures] : tenant.index.figures()) ended_ += figures;
    at = tenants_.erase(at);
  }
}

/// Ends the tenant's blocks and gives its memory back.
void BlockStore::clear(Tenant& tenant) {
  const std::size_t segments = tenant.index.areas(kDdr);
  const std::size_t extents = tenant.index.areas(BlockMedium::kFlash);
  tenant.index.clear();
  end_flash(tenant);
  tenant.generation = ++generations_;
  tenant.growing = false;
  for (const Reserving& waiting : std::exchange(tenant.waiting, {})) {
    waiting.answer(Error(Errc::kCanceled, "the tenant's blocks were cleared"));
  }
  if (!tenant.session) return;
  const SessionId session = *std::exchange(tenant.session, std::nullopt);
  if (pool_.sessions().count(session) == 0) {  // ended by the daemon's own end
    held_segments_ -= segments;
    held_extents_ -= extents;
    return;
  }
  staging_.close_session(session, [this, segments, extents] {
    held_segments_ -= segments;
    held_extents_ -= extents;
  });
}

Result<BlockFigures> BlockStore::clear(const std::string& name) {
  BlockFigures ended;
  bool found = false;
  for (auto& [key, tenant] : tenants_) {
    if (tenant->name != name) continue;
    found = true;
    for (const auto& [model, figures] : tenant->index.figures()) ended += figures;
    clear(*tenant);
  }
  if (!found) return Error(Errc::kNotFound, "no tenant \"" + name + "\" on this node");
  log(LogLevel::kInfo, "blocks cleared", {{"tenant", name}, {"bytes", format_bytes(ended.bytes)}});
  return ended;
}

std::vector<BlockStore::TenantView> BlockStore::tenants() const {
  std::vector<TenantView> out;
  for (const auto& [key, tenant] : tenants_) {
    const std::uint64_t area_bytes = pool_.options().segment_bytes;
    out.push_back({tenant->name, tenant->index.areas(kDdr) * area_bytes,
                   tenant->index.areas(BlockMedium::kFlash) * area_bytes, tenant->index.figures()});
  }
  return out;
}

BlockFigures BlockStore::totals() const {
  BlockFigures out = ended_;
  for (const auto& [key, tenant] : tenants_) {
    for (const auto& [model, figures] : tenant->index.figures()) out += figures;
  }
  return out;
}

std::map<std::string, std::uint64_t> BlockStore::held_bytes() const {
  std::map<std::string, std::uint64_t> out;
  for (const auto& [key, tenant] : tenants_) {
    out[tenant->owner] += tenant->index.areas(kDdr) * pool_.options().segment_bytes;
  }
  return out;
}

bool BlockStore::owns(SessionId session) const {
  return std::any_of(tenants_.begin(), tenants_.end(),
                     [&](const auto& one) { return one.second->session == session; });
}

}  // namespace ho::daemon
