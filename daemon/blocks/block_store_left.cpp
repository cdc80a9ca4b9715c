// A store that passes to the next daemon, when this one ends for an upgrade.
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "daemon/blocks/block_store.hpp"
#include "daemon/blocks/left_blocks.hpp"

namespace ho::daemon {

BlockStore::Left BlockStore::leave() {
  std::vector<LeftTenant> tenants;
  Left out;
  for (const auto& [key, tenant] : tenants_) {
    const bool any =
        tenant->index.areas(BlockMedium::kDdr) + tenant->index.areas(BlockMedium::kFlash) > 0;
    if (!tenant->session || !any) continue;
    if (auto kept = grants_.keep(*tenant->session); !kept) {
      log(LogLevel::kWarning, "blocks are not left to the next daemon",
          {{"tenant", tenant->name}, {"why", kept.error().message()}});
      continue;
    }
    tenants.push_back({key, tenant->name, tenant->owner, tenant->limit == Limit::kNone,
                       *tenant->session, tenant->index.leave(most_left(*tenant))});
    const std::size_t kept = tenants.back().index.tier(BlockMedium::kFlash).areas.size();
    if (const std::size_t all = tenant->index.areas(BlockMedium::kFlash); kept < all) {
      log(LogLevel::kWarning, "some blocks on flash are not left to the next daemon",
          {{"tenant", tenant->name},
           {"bytes", format_bytes((all - kept) * area_bytes())},
           {"why", "of all flash at most " + format_bytes(kLeftFlashBytesMax) + " and " +
                       std::to_string(kLeftCopiesMax) +
                       " blocks pass over an upgrade, while jobs wait: those used last"}});
    }
  }
  auto index = encode(tenants);
  if (!index) {
    log(LogLevel::kWarning, "blocks on flash are not left to the next daemon",
        {{"why", index.error().message()}});
    for (LeftTenant& tenant : tenants) tenant.index.tier(BlockMedium::kFlash) = {};
    index = encode(tenants);
  }
  if (!index) {
    log(LogLevel::kWarning, "blocks are not left to the next daemon",
        {{"why", index.error().message()}});
    return {};
  }
  for (const LeftTenant& tenant : tenants) {
    for (const auto& [id, block_bytes] : tenant.index.tier(BlockMedium::kFlash).areas) {
      out.extents.insert(flash::ExtentId(id.value()));
    }
  }
  out.index = std::move(*index);
  return out;
}

/// Each tenant has the same share of what may be left as of what there is.
BlockIndex::LeaveMost BlockStore::most_left(const Tenant& tenant) const {
  std::size_t areas = 0;
  std::size_t blocks = 0;
  for (const auto& [key, one] : tenants_) {
    areas += one->index.areas(BlockMedium::kFlash);
    blocks += one->index.blocks();
  }
  const auto share = [](std::size_t most, std::size_t mine, std::size_t all) {
    return all <= most ? most : most * mine / all;
  };
  return {share(kLeftFlashBytesMax / area_bytes(), tenant.index.areas(BlockMedium::kFlash), areas),
          share(kLeftCopiesMax, tenant.index.blocks(), blocks)};
}

void BlockStore::adopt(std::string left) {
  auto tenants = decode_left(std::as_bytes(std::span(left)));
  left = std::string();  // it may be large
  if (!tenants) {
    return log(LogLevel::kError, "blocks of the last daemon are lost",
               {{"why", tenants.error().message()}});
  }
  for (LeftTenant& tenant : *tenants) {
    const auto blocks = adopt(tenant);
    if (!blocks) {
      // Nobody renews the session that holds the segments and extents.
      log(LogLevel::kWarning, "a tenant's blocks of the last daemon are lost",
          {{"tenant", tenant.name}, {"why", blocks.error().message()}});
      continue;
    }
    log(LogLevel::kInfo, "took blocks over from the last daemon",
        {{"tenant", tenant.name}, {"blocks", std::to_string(*blocks)}});
  }
}

/// @return how many blocks there are.
Result<std::size_t> BlockStore::adopt(LeftTenant& left) {
  if (pool_.sessions().count(left.session) == 0) {
    return Error(Errc::kNotFound, "the session that held them was not taken over");
  }
  const BlockIndex::Left::Tier& ddr = left.index.tier(BlockMedium::kDdr);
  for (const auto& [id, block_bytes] : ddr.areas) {
    const SegmentRecord* const segment = pool_.find(SegmentId(id.value()));
    const bool there = segment != nullptr && segment->session == left.session &&
                       segment->state == SegmentRecord::State::kLive;
    if (!there) return Error(Errc::kNotFound, "a segment was not taken over");
  }
  if (held(BlockMedium::kDdr) + ddr.areas.size() > areas_max(BlockMedium::kDdr)) {
    return Error(Errc::kExhausted, "the store is smaller now");
  }
  if (tenants_.size() >= kTenantsMax || tenants_.count(left.identity) > 0) {
    return Error(Errc::kConflict, "too many tenants, or the same twice");
  }
  claim_extents(left);
  auto tenant = std::make_unique<Tenant>(left.identity, left.name, area_bytes(), options_.salt);
  if (auto taken = tenant->index.adopt(left.index); !taken) {
    // Nobody would count its extents until its lease ends.
    staging_.close_session(left.session, [] {});
    return taken.error();
  }
  tenant->generation = ++generations_;
  tenant->owner = left.owner;
  tenant->limit = left.unlimited ? Limit::kNone : Limit::kQuota;
  tenant->session = left.session;
  for (const BlockMedium medium : BlockIndex::kMedia) held(medium) += tenant->index.areas(medium);
  // Blocks change from now on, and a crash must not leave them without their index.
  grants_.unkeep(left.session);
  const std::size_t blocks = tenant->index.blocks();
  tenants_.emplace(left.identity, std::move(tenant));
  return blocks;
}

/// Makes the tenant's extents its session's. Blocks in those that are not there are lost, and in
/// those that the store has no room for.
void BlockStore::claim_extents(LeftTenant& left) {
  const auto lose = [&left, this](const std::set<AreaId>& lost, const char* why) {
    if (lost.empty()) return;
    left.index.drop_areas(BlockMedium::kFlash, lost);
    log(LogLevel::kWarning, "blocks on flash of the last daemon are lost",
        {{"tenant", left.name}, {"bytes", format_bytes(lost.size() * area_bytes())}, {"why", why}});
  };
  std::vector<std::uint64_t> wanted;
  std::set<AreaId> beyond;
  for (const auto& [id, block_bytes] : left.index.tier(BlockMedium::kFlash).areas) {
    if (held(BlockMedium::kFlash) + wanted.size() < areas_max(BlockMedium::kFlash)) {
      wanted.push_back(id.value());
    } else {
      beyond.insert(id);
    }
  }
  std::set<AreaId> missing;
  for (const std::uint64_t id : staging_.claim(left.session, wanted, area_bytes())) {
    missing.insert(AreaId(id));
  }
  lose(beyond, "the store has less flash now");
  lose(missing, "their extents were not left, or flash did not take them over");
}

}  // namespace ho::daemon
