// The KV block store's requests: proto/blocks.proto.
#include <control.pb.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/log.hpp"
#include "daemon/blocks/block_store.hpp"
#include "daemon/control/service.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"
#include "proto/control/segment_message.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

constexpr std::size_t kKeyBytes = 16;

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t out = 0;
  for (std::size_t i = 8; i > 0; --i) out = out << 8U | static_cast<unsigned char>(bytes[i - 1]);
  return out;
}

Result<std::vector<BlockKey>> to_keys(const std::string& bytes) {
  const std::size_t count = bytes.size() / kKeyBytes;
  if (bytes.empty() || bytes.size() % kKeyBytes != 0 || count > BlockStore::kKeysMax) {
    return Error(Errc::kInvalidArgument, "keys: 1 to " + std::to_string(BlockStore::kKeysMax) +
                                             " of 16 bytes in one request");
  }
  std::vector<BlockKey> keys;
  keys.reserve(count);
  for (std::size_t at = 0; at < bytes.size(); at += kKeyBytes) {
    const std::string_view key(bytes.data() + at, kKeyBytes);
    keys.push_back({little_endian(key.substr(0, 8)), little_endian(key.substr(8))});
  }
  return keys;
}

pb::BlockAnswer to_answer(BlockIndex::Answer answer) {
  switch (answer) {
    case BlockIndex::Answer::kReserved: return pb::BLOCK_RESERVED;
    case BlockIndex::Answer::kExists: return pb::BLOCK_EXISTS;
    case BlockIndex::Answer::kNoRoom: break;
  }
  return pb::BLOCK_NO_ROOM;
}

void put_place(const std::optional<BlockPlace>& place, pb::BlockLocation* to) {
  if (!place) return;
  to->set_block_id(place->id.value());
  to->set_segment_id(place->segment.value());
  to->set_offset(place->offset_bytes);
  to->set_bytes(place->length_bytes);
  to->set_checksum_low(place->checksum[0]);
  to->set_checksum_high(place->checksum[1]);
}

}  // namespace

void Service::set_blocks(BlockStore& blocks) {
  blocks_ = &blocks;
  blocks.set_quota([this](const std::string& owner) {
    const Quota& quota = access_.quota_of(owner);
    BlockStore::Quota out{quota.blocks_bytes, quota.flash_bytes, 0};
    if (quota.flash_bytes == UINT64_MAX || facts_.flash == nullptr) return out;
    const auto owned = facts_.flash->status().owned_bytes;
    if (const auto has = owned.find(owner); has != owned.end()) out.flash_used = has->second;
    return out;
  });
}

std::optional<BlockFigures> Service::block_figures() const {
  if (blocks_ == nullptr) return std::nullopt;
  return blocks_->totals();
}

/// @return the session of a request; kUnsupported: this node has no store.
template <typename Body>
Result<SessionId> Service::blocks_session(const Body& body) const {
  if (blocks_ == nullptr) {
    return Error(Errc::kUnsupported, pool_.options().node_name +
                                         " has no block store: its configuration has no blocks");
  }
  return session_of(body);
}

void Service::blocks_open(const Request& request, const Asked& asked) {
  const pb::BlocksOpenRequest& body = request.blocks_open();
  const auto session = blocks_session(body);
  if (!session) return asked.refuse(session.error());
  const TenantSpec tenant{asked.peer.owner, body.tenant(), body.secret()};
  const auto limit =
      asked.peer.role == tls::Role::kAdmin ? BlockStore::Limit::kNone : BlockStore::Limit::kQuota;
  const auto store = blocks_->open(*session, tenant, body.model(), limit);
  if (!store) return asked.refuse(store.error());
  pb::Response response = asked.begin();
  response.mutable_blocks_open()->set_store(*store);
  asked.answer(response);
}

void Service::blocks_attach(const Request& request, const Asked& asked) {
  const pb::BlocksAttachRequest& body = request.blocks_attach();
  const auto session = blocks_session(body);
  if (!session) return asked.refuse(session.error());
  if (!offers(body.driver(), asked.peer)) return refuse_driver(body.driver(), asked);
  std::vector<SegmentId> ids;
  for (const std::uint64_t id : body.segment_ids()) ids.push_back(SegmentId(id));
  pb::Response response = asked.begin();
  blocks_->attach(*session, body.store(), body.driver(), ids,
                  [response, asked](Result<std::vector<GrantedSegment>> shared) mutable {
                    if (!shared) return asked.refuse(shared.error());
                    auto descriptors = put_segments(
                        *std::move(shared), response.mutable_blocks_attach()->mutable_segments());
                    asked.answer(response, std::move(descriptors));
                  });
}

void Service::blocks_find(const Request& request, const Asked& asked) {
  const pb::BlocksFindRequest& body = request.blocks_find();
  const auto session = blocks_session(body);
  if (!session) return asked.refuse(session.error());
  const auto use = blocks_->find(*session, body.store());
  if (!use) return asked.refuse(use.error());
  const auto keys = to_keys(body.keys());
  if (!keys) return asked.refuse(keys.error());
  pb::Response response = asked.begin();
  auto* const out = response.mutable_blocks_find();
  switch (body.action()) {
    case pb::BLOCKS_LOCATE:
      return blocks_->locate(*session, body.store(), *keys,
                             [response, asked](const auto& places) mutable {
                               if (!places) return asked.refuse(places.error());
                               for (const auto& place : *places) {
                                 put_place(place, response.mutable_blocks_find()->add_blocks());
                               }
                               asked.answer(response);
                             });
    case pb::BLOCKS_EXISTS:
      for (const BlockKey& key : *keys) {
        const bool found = use->index->has(key);
        if (!found) use->index->count_miss(use->model);
        out->mutable_found()->push_back(found ? '\1' : '\0');
      }
      break;
    case pb::BLOCKS_REMOVE:
      for (const BlockKey& key : *keys) {
        out->mutable_found()->push_back(use->index->remove(key) ? '\1' : '\0');
      }
      break;
    case pb::BLOCKS_PIN: {
      const auto time =
          std::min<Duration>(std::chrono::milliseconds(body.pin_ms()), BlockStore::kPinMax);
      const auto pinned = blocks_->pin(*session, body.store(), *keys, clock_.now() + time);
      if (!pinned) return asked.refuse(pinned.error());
      out->set_pin(pinned->pin.value());
      out->set_pinned(static_cast<std::uint32_t>(pinned->count));
      break;
    }
    default: return asked.refuse(Error(Errc::kInvalidArgument, "no such action on blocks"));
  }
  asked.answer(response);
}

void Service::blocks_reserve(const Request& request, const Asked& asked) {
  const pb::BlocksReserveRequest& body = request.blocks_reserve();
  const auto session = blocks_session(body);
  if (!session) return asked.refuse(session.error());
  // A block that is put now would end with the daemon, whose store cannot grow any more: "no room"
  // would say that it is full.
  if (pool_.draining()) return asked.refuse(pool_.check_open().error());
  const auto keys = to_keys(body.keys());
  if (!keys) return asked.refuse(keys.error());
  const auto count = static_cast<int>(keys->size());
  if (body.bytes_size() != count || (body.costs_size() != 0 && body.costs_size() != count)) {
    return asked.refuse(Error(Errc::kInvalidArgument, "keys, bytes and costs differ in number"));
  }
  std::vector<BlockStore::Wanted> wanted;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t cost = body.costs_size() == 0 ? 1 : std::max(body.costs(i), 1U);
    wanted.push_back({(*keys)[static_cast<std::size_t>(i)], body.bytes(i), cost});
  }
  pb::Response response = asked.begin();
  blocks_->reserve(*session, body.store(), std::move(wanted),
                   [response, asked](const auto& reserved) mutable {
                     if (!reserved) return asked.refuse(reserved.error());
                     auto* const out = response.mutable_blocks_reserve();
                     for (const BlockIndex::Reserved& one : *reserved) {
                       auto* const to = out->add_slots();
                       to->set_answer(to_answer(one.answer));
                       to->set_block_id(one.place.id.value());
                       to->set_segment_id(one.place.segment.value());
                       to->set_offset(one.place.offset_bytes);
                     }
                     // Unheard reservations end by their age.
                     asked.answer(response);
                   });
}

void Service::blocks_settle(const Request& request, const Asked& asked) {
  const pb::BlocksSettleRequest& body = request.blocks_settle();
  const auto session = blocks_session(body);
  if (!session) return asked.refuse(session.error());
  const auto use = blocks_->find(*session, body.store());
  if (!use) return asked.refuse(use.error());
  pb::Response response = asked.begin();
  auto* const stored = response.mutable_blocks_settle()->mutable_stored();
  for (const pb::BlockCommit& one : body.commits()) {
    const BlockChecksum checksum{one.checksum_low(), one.checksum_high()};
    const bool ok = use->index->commit(BlockId(one.block_id()), *session, checksum);
    stored->push_back(ok ? '\1' : '\0');
  }
  for (const std::uint64_t id : body.dropped_ids()) use->index->drop(BlockId(id), *session);
  for (const std::uint64_t pin : body.pins()) use->index->unpin(PinId(pin), *session);
  asked.answer(response);
}

void Service::blocks_list(const Asked& asked) {
  pb::Response response = asked.begin();
  auto* const out = response.mutable_blocks_list();
  if (blocks_ != nullptr) {
    out->set_capacity_bytes(blocks_->capacity_bytes());
    out->set_flash_bytes(blocks_->flash_bytes());
    for (const BlockStore::TenantView& tenant : blocks_->tenants()) {
      auto* const to = out->add_tenants();
      to->set_name(tenant.name);
      to->set_held_bytes(tenant.held_bytes);
      to->set_held_flash_bytes(tenant.held_flash_bytes);
      for (const auto& [name, figures] : tenant.models) {
        auto* const model = to->add_models();
        model->set_name(name);
        model->set_blocks(figures.blocks);
        model->set_bytes(figures.bytes);
        model->set_hits(figures.hits);
        model->set_misses(figures.misses);
        model->set_puts(figures.puts);
        model->set_evictions(figures.evictions);
        model->set_ddr_bytes(figures.ddr_bytes);
        model->set_flash_bytes(figures.flash_bytes);
        model->set_flash_hits(figures.flash_hits);
      }
    }
  }
  asked.answer(response);
}

void Service::blocks_clear(const Request& request, const Asked& asked) {
  const std::string& tenant = request.blocks_clear().tenant();
  if (blocks_ == nullptr) {
    return asked.refuse(Error(Errc::kNotFound, "this node has no block store"));
  }
  const auto ended = blocks_->clear(tenant);
  if (!ended) return asked.refuse(ended.error());
  note_act("block store cleared", asked.peer, {{"tenant", tenant}});
  pb::Response response = asked.begin();
  response.mutable_blocks_clear()->set_blocks(ended->blocks);
  response.mutable_blocks_clear()->set_bytes(ended->bytes);
  asked.answer(response);
}

}  // namespace ho::daemon
