// A store that passes to the next daemon, when this one ends for an upgrade.
#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "daemon/blocks/block_store.hpp"
#include "daemon/blocks/left_blocks.hpp"

namespace ho::daemon {

std::string BlockStore::leave() {
  std::vector<LeftTenant> out;
  std::uint64_t stored = 0;
  std::uint64_t in_ddr = 0;
  for (const auto& [key, tenant] : tenants_) {
    if (!tenant->session || tenant->index.areas(BlockMedium::kDdr) == 0) continue;
    if (auto kept = grants_.keep(*tenant->session); !kept) {
      log(LogLevel::kWarning, "blocks are not left to the next daemon",
          {{"tenant", tenant->name}, {"why", kept.error().message()}});
      continue;
    }
    for (const auto& [model, figures] : tenant->index.figures()) stored += figures.bytes;
    for (const auto& [model, figures] : tenant->index.figures()) in_ddr += figures.ddr_bytes;
    BlockIndex::Left index = tenant->index.leave();
    index.tier(BlockMedium::kFlash) = {};  // extents end with this daemon
    out.push_back({key, tenant->name, tenant->owner, tenant->limit == Limit::kNone,
                   *tenant->session, std::move(index)});
  }
  if (stored > in_ddr) {
    log(LogLevel::kInfo, "blocks that are on flash only end with this daemon",
        {{"bytes", format_bytes(stored - in_ddr)}});
  }
  return encode(out);
}

void BlockStore::adopt(std::span<const std::byte> left) {
  const auto tenants = decode_left(left);
  if (!tenants) {
    return log(LogLevel::kError, "blocks of the last daemon are lost",
               {{"why", tenants.error().message()}});
  }
  for (const LeftTenant& tenant : *tenants) {
    if (auto taken = adopt(tenant); !taken) {
      // Nobody renews the session that holds the segments.
      log(LogLevel::kWarning, "a tenant's blocks of the last daemon are lost",
          {{"tenant", tenant.name}, {"why", taken.error().message()}});
      continue;
    }
    log(LogLevel::kInfo, "took blocks over from the last daemon",
        {{"tenant", tenant.name},
         {"blocks", std::to_string(tenant.index.tier(BlockMedium::kDdr).copies.size())}});
  }
}

Result<void> BlockStore::adopt(const LeftTenant& left) {
  const BlockIndex::Left::Tier& ddr = left.index.tier(BlockMedium::kDdr);
  for (const auto& [id, block_bytes] : ddr.areas) {
    const SegmentRecord* const segment = pool_.find(SegmentId(id.value()));
    const bool there = segment != nullptr && segment->session == left.session &&
                       segment->state == SegmentRecord::State::kLive;
    if (!there) return Error(Errc::kNotFound, "a segment was not taken over");
  }
  const std::uint64_t segments = held(BlockMedium::kDdr) + ddr.areas.size();
  if (segments > areas_max(BlockMedium::kDdr)) {
    return Error(Errc::kExhausted, "the store is smaller now");
  }
  if (tenants_.size() >= kTenantsMax || tenants_.count(left.identity) > 0) {
    return Error(Errc::kConflict, "too many tenants, or the same twice");
  }
  auto tenant = std::make_unique<Tenant>(left.identity, left.name, area_bytes(), options_.salt);
  if (auto taken = tenant->index.adopt(left.index); !taken) return taken;
  tenant->generation = ++generations_;
  tenant->owner = left.owner;
  tenant->limit = left.unlimited ? Limit::kNone : Limit::kQuota;
  tenant->session = left.session;
  held(BlockMedium::kDdr) = segments;
  // Blocks change from now on, and a crash must not leave them without their index.
  grants_.unkeep(left.session);
  tenants_.emplace(left.identity, std::move(tenant));
  return {};
}

}  // namespace ho::daemon
