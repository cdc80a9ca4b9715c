#include "daemon/blocks/left_blocks.hpp"

#include <manifest.pb.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/checksum.hpp"
#include "common/base/units.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

using Areas = google::protobuf::RepeatedPtrField<pb::LeftArea>;
using Blocks = google::protobuf::RepeatedPtrField<pb::LeftBlock>;

void put(const BlockIndex::Left::Tier& tier, Areas& areas, Blocks& blocks) {
  for (const auto& [id, block_bytes] : tier.areas) {
    auto* const area = areas.Add();
    area->set_area_id(id.value());
    area->set_block_bytes(block_bytes);
  }
  for (const BlockIndex::Left::Copy& one : tier.copies) {
    auto* const block = blocks.Add();
    block->set_key_low(one.key.low);
    block->set_key_high(one.key.high);
    block->set_checksum_low(one.checksum[0]);
    block->set_checksum_high(one.checksum[1]);
    block->set_area_id(one.area.value());
    block->set_slot(one.slot);
    block->set_cost(one.cost);
    block->set_model(one.model.value());
    block->set_worth(one.worth);
    block->set_uses(one.uses);
  }
}

BlockIndex::Left::Tier tier_of(const Areas& areas, const Blocks& blocks) {
  BlockIndex::Left::Tier out;
  for (const pb::LeftArea& area : areas) out.areas[AreaId(area.area_id())] = area.block_bytes();
  for (const pb::LeftBlock& block : blocks) {
    BlockIndex::Left::Copy& to = out.copies.emplace_back();
    to.key = {block.key_low(), block.key_high()};
    to.checksum = {block.checksum_low(), block.checksum_high()};
    to.area = AreaId(block.area_id());
    to.slot = block.slot();
    to.cost = block.cost();
    to.model = ModelIndex(block.model());
    to.worth = block.worth();
    to.uses = std::clamp(block.uses(), 1U, BlockIndex::kUsesMax);
  }
  return out;
}

void put(const BlockIndex::Left& index, pb::LeftTenant* to) {
  for (const auto& [name, figures] : index.models) {
    auto* const model = to->add_models();
    model->set_name(name);
    model->set_hits(figures.hits);
    model->set_flash_hits(figures.flash_hits);
    model->set_misses(figures.misses);
    model->set_puts(figures.puts);
    model->set_evictions(figures.evictions);
  }
  const BlockIndex::Left::Tier& ddr = index.tier(BlockMedium::kDdr);
  const BlockIndex::Left::Tier& flash = index.tier(BlockMedium::kFlash);
  put(ddr, *to->mutable_segments(), *to->mutable_blocks());
  put(flash, *to->mutable_extents(), *to->mutable_flash_blocks());
}

BlockIndex::Left index_of(const pb::LeftTenant& from) {
  BlockIndex::Left out;
  for (const pb::LeftModel& model : from.models()) {
    BlockFigures figures;
    figures.hits = model.hits();
    figures.flash_hits = model.flash_hits();
    figures.misses = model.misses();
    figures.puts = model.puts();
    figures.evictions = model.evictions();
    out.models.emplace_back(model.name(), figures);
  }
  out.tier(BlockMedium::kDdr) = tier_of(from.segments(), from.blocks());
  out.tier(BlockMedium::kFlash) = tier_of(from.extents(), from.flash_blocks());
  return out;
}

}  // namespace

Result<std::string> encode(const std::vector<LeftTenant>& tenants) {
  pb::LeftBlocks all;
  for (const LeftTenant& tenant : tenants) {
    auto* const to = all.add_tenants();
    to->set_identity(tenant.identity);
    to->set_name(tenant.name);
    to->set_owner(tenant.owner);
    to->set_unlimited(tenant.unlimited);
    to->set_session_id(tenant.session.value());
    put(tenant.index, to);
  }
  const std::size_t bytes = all.ByteSizeLong();
  if (bytes > std::numeric_limits<int>::max()) {
    return Error(Errc::kExhausted,
                 "the index of blocks would have " + format_bytes(bytes) + ", more than 2 GiB");
  }
  std::uint64_t sum = 0;
  std::string out(sizeof sum, '\0');
  out.reserve(sizeof sum + bytes);
  if (!all.AppendToString(&out)) return Error(Errc::kExhausted, "the index cannot be written");
  sum = checksum64(std::as_bytes(std::span(out)).subspan(sizeof sum));
  std::memcpy(out.data(), &sum, sizeof sum);
  return out;
}

Result<std::vector<LeftTenant>> decode_left(std::span<const std::byte> bytes) {
  const Error corrupt(Errc::kCorrupt, "the index of blocks is damaged");
  std::uint64_t sum = 0;
  if (bytes.size() < sizeof sum) return corrupt;
  std::memcpy(&sum, bytes.data(), sizeof sum);
  const auto payload = bytes.subspan(sizeof sum);
  if (sum != checksum64(payload)) return corrupt;
  pb::LeftBlocks all;
  if (payload.size() > std::numeric_limits<int>::max() ||
      !all.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return corrupt;
  }
  std::vector<LeftTenant> out;
  for (const pb::LeftTenant& from : all.tenants()) {
    out.push_back({from.identity(), from.name(), from.owner(), from.unlimited(),
                   SessionId(from.session_id()), index_of(from)});
  }
  return out;
}

}  // namespace ho::daemon
