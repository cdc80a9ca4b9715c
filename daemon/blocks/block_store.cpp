#include "daemon/blocks/block_store.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"

namespace ho::daemon {

namespace {

constexpr std::size_t kNameBytesMax = 255;

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
  auto found = tenants_.find(key);
  if (const auto mine = sessions_.find(session); mine != sessions_.end()) {
    const auto& stores = mine->second;
    const auto again = std::find_if(stores.begin(), stores.end(), [&](const Opened& one) {
      return found != tenants_.end() && one.tenant == found->second.get() &&
             one.tenant->index.figures()[one.model.value()].first == model;
    });
    if (again != stores.end()) return static_cast<std::uint32_t>(again - stores.begin());
    if (stores.size() >= kStoresPerSessionMax) {
      return Error(Errc::kExhausted, "the session has opened " +
                                         std::to_string(kStoresPerSessionMax) +
                                         " block stores, the limit");
    }
  }
  if (found == tenants_.end()) {
    if (tenants_.size() >= kTenantsMax) {
      return Error(Errc::kExhausted,
                   "the node has " + std::to_string(kTenantsMax) + " tenants, the limit");
    }
    auto tenant = std::make_unique<Tenant>(key, tenant_label(spec), area_bytes(), options_.salt);
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
    if (use->tenant->index.has_area(BlockMedium::kDdr, AreaId(id.value()))) own.push_back(id);
  }
  grants_.share({session, driver, transport::Rights::kReadWrite, std::move(own)},
                std::move(answer));
}

void BlockStore::reserve(SessionId session, std::uint32_t store, std::vector<Wanted> wanted,
                         Reserved answer) {
  const auto use = opened(session, store);
  if (!use) return answer(use.error());
  for (const Wanted& one : wanted) {
    if (one.length_bytes < BlockIndex::kBlockBytesMin || one.cost == 0) {
      return answer(Error(Errc::kInvalidArgument, "a block has 4096 bytes or more, and a cost"));
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
    if (made.answer == BlockIndex::Answer::kNoRoom && tenant.index.takes(next.length_bytes)) {
      if (grow(tenant, BlockMedium::kDdr, next.length_bytes)) {
        tenant.waiting.push_back(std::move(reserving));
        return;
      }
      recut(tenant, BlockMedium::kDdr, next.length_bytes);
      made = tenant.index.reserve(want, BlockIndex::Evict::kYes, now);
    }
    reserving.made.push_back(made);
  }
  reserving.answer(reserving.made);
  save_ahead(tenant);
}

/// Room has come, or will not: what waits for it goes on.
void BlockStore::resume(Tenant& tenant) {
  if (!tenant.growth(BlockMedium::kDdr).growing) {
    for (Reserving& waiting : std::exchange(tenant.waiting, {})) go_on(tenant, std::move(waiting));
  }
  load_more(tenant);
  save_ahead(tenant);
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
    std::erase_if(tenant->saves, [](const auto& size) { return size.second == 0; });
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
    const bool growing = std::any_of(tenant.growths.begin(), tenant.growths.end(),
                                     [](const Growth& growth) { return growth.growing; });
    if (used || growing || tenant.index.blocks() > 0) {
      ++at;
      continue;
    }
    clear(tenant);
    for (const auto& [model, figures] : tenant.index.figures()) ended_ += figures;
    at = tenants_.erase(at);
  }
}

/// Ends the tenant's blocks and gives its memory and flash back.
void BlockStore::clear(Tenant& tenant) {
  const std::size_t segments = tenant.index.areas(BlockMedium::kDdr);
  const std::size_t extents = tenant.index.areas(BlockMedium::kFlash);
  tenant.index.clear();
  end_moves(tenant);
  tenant.generation = ++generations_;
  tenant.growths = {};
  for (const Reserving& waiting : std::exchange(tenant.waiting, {})) {
    waiting.answer(Error(Errc::kCanceled, "the tenant's blocks were cleared"));
  }
  if (!tenant.session) return;
  const SessionId session = *std::exchange(tenant.session, std::nullopt);
  const auto ended = [this, segments, extents] {
    held(BlockMedium::kDdr) -= segments;
    held(BlockMedium::kFlash) -= extents;
  };
  if (pool_.sessions().count(session) == 0) return ended();  // by the daemon's own end
  staging_.close_session(session, ended);
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
    out.push_back({tenant->name, tenant->index.areas(BlockMedium::kDdr) * area_bytes,
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
    out[tenant->owner] += tenant->index.areas(BlockMedium::kDdr) * area_bytes();
  }
  return out;
}

bool BlockStore::owns(SessionId session) const {
  return std::any_of(tenants_.begin(), tenants_.end(),
                     [&](const auto& one) { return one.second->session == session; });
}

}  // namespace ho::daemon
