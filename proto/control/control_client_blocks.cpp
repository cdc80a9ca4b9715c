#include <control.pb.h>

#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "proto/control/control_client.hpp"
#include "proto/control/control_connection.hpp"
#include "proto/control/segment_message.hpp"

namespace ho {

namespace pb = hyperoffload::v1;

namespace {

using control::Reply;
using control::senseless;

void put_little_endian(std::uint64_t value, std::string& to) {
  for (int i = 0; i < 8; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

void put_key(const BlockDigest& key, std::string* to) {
  put_little_endian(key.low, *to);
  put_little_endian(key.high, *to);
}

pb::Request find_request(const Session& session, std::uint32_t store, pb::BlocksAction action,
                         std::span<const BlockDigest> keys) {
  HO_CHECK(!keys.empty() && keys.size() <= kBlockKeysMax);
  pb::Request request;
  auto* const body = request.mutable_blocks_find();
  control::put_session(session, body);
  body->set_store(store);
  body->set_action(action);
  for (const BlockDigest& key : keys) put_key(key, body->mutable_keys());
  return request;
}

Result<std::vector<bool>> to_flags(const std::string& bytes, std::size_t count) {
  if (bytes.size() != count) return senseless("not one answer for each block");
  std::vector<bool> out;
  for (const char byte : bytes) out.push_back(byte != 0);
  return out;
}

}  // namespace

Result<std::uint32_t> ControlClient::blocks_open(const Session& session,
                                                 const BlocksTenantSpec& spec, TimePoint deadline) {
  pb::Request request;
  auto* const body = request.mutable_blocks_open();
  control::put_session(session, body);
  body->set_tenant(spec.tenant);
  body->set_secret(spec.secret);
  body->set_model(spec.model);
  const auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (!reply->response.has_blocks_open()) return senseless("no block store in the answer");
  return reply->response.blocks_open().store();
}

Result<void> ControlClient::blocks_attach(const Session& session, std::uint32_t store,
                                          const std::string& driver,
                                          const std::vector<SegmentId>& segments,
                                          Answered<std::vector<GrantedSegment>> done) {
  pb::Request request;
  auto* const body = request.mutable_blocks_attach();
  control::put_session(session, body);
  body->set_store(store);
  body->set_driver(driver);
  for (const SegmentId segment : segments) body->add_segment_ids(segment.value());
  const bool descriptors = driver == "local";
  const auto received = [done = std::move(done), descriptors](Result<Reply> reply) {
    if (!reply) return done(reply.error());
    if (reply->descriptors_lost) return done(control::too_many_open());
    const auto& answer = reply->response.blocks_attach();
    auto out = take_segments(answer.segments(), std::move(reply->descriptors), descriptors);
    if (!out) return done(senseless(out.error().context()));
    done(std::move(out));
  };
  return connection_->start(std::move(request), received);
}

Result<void> ControlClient::blocks_locate(const Session& session, std::uint32_t store,
                                          std::span<const BlockDigest> keys,
                                          Answered<std::vector<BlockLocation>> done) {
  const auto received = [done = std::move(done), count = keys.size()](const Result<Reply>& reply) {
    if (!reply) return done(reply.error());
    const auto& answer = reply->response.blocks_find();
    if (static_cast<std::size_t>(answer.blocks_size()) != count) {
      return done(senseless("not one place for each block"));
    }
    std::vector<BlockLocation> out;
    out.reserve(count);
    for (const pb::BlockLocation& from : answer.blocks()) {
      out.push_back({from.block_id(),
                     SegmentId(from.segment_id()),
                     from.offset(),
                     from.bytes(),
                     {from.checksum_low(), from.checksum_high()}});
    }
    done(std::move(out));
  };
  return connection_->start(find_request(session, store, pb::BLOCKS_LOCATE, keys), received);
}

Result<void> ControlClient::blocks_ask(const Session& session, std::uint32_t store,
                                       BlocksQuestion question, std::span<const BlockDigest> keys,
                                       Answered<std::vector<bool>> done) {
  const auto received = [done = std::move(done), count = keys.size()](const Result<Reply>& reply) {
    if (!reply) return done(reply.error());
    done(to_flags(reply->response.blocks_find().found(), count));
  };
  const auto action = static_cast<pb::BlocksAction>(question);
  return connection_->start(find_request(session, store, action, keys), received);
}

Result<void> ControlClient::blocks_pin(const Session& session, std::uint32_t store,
                                       std::span<const BlockDigest> keys,
                                       std::chrono::milliseconds time,
                                       Answered<BlocksPinned> done) {
  pb::Request request = find_request(session, store, pb::BLOCKS_PIN, keys);
  request.mutable_blocks_find()->set_pin_ms(static_cast<std::uint32_t>(time.count()));
  const auto received = [done = std::move(done), count = keys.size()](const Result<Reply>& reply) {
    if (!reply) return done(reply.error());
    const auto& answer = reply->response.blocks_find();
    if (answer.pinned() > count) return done(senseless("more blocks are pinned than asked for"));
    done(BlocksPinned{answer.pin(), answer.pinned()});
  };
  return connection_->start(std::move(request), received);
}

Result<void> ControlClient::blocks_reserve(const Session& session, std::uint32_t store,
                                           std::span<const BlockWish> wishes,
                                           Answered<std::vector<BlockSlot>> done) {
  HO_CHECK(!wishes.empty() && wishes.size() <= kBlockKeysMax);
  pb::Request request;
  auto* const body = request.mutable_blocks_reserve();
  control::put_session(session, body);
  body->set_store(store);
  for (const BlockWish& wish : wishes) {
    put_key(wish.key, body->mutable_keys());
    body->add_bytes(wish.length_bytes);
    body->add_costs(wish.cost);
  }
  const auto received = [done = std::move(done),
                         count = wishes.size()](const Result<Reply>& reply) {
    if (!reply) return done(reply.error());
    const auto& answer = reply->response.blocks_reserve();
    if (static_cast<std::size_t>(answer.slots_size()) != count) {
      return done(senseless("not one slot for each block"));
    }
    std::vector<BlockSlot> out;
    for (const pb::BlockSlot& from : answer.slots()) {
      if (from.answer() < pb::BLOCK_RESERVED || from.answer() > pb::BLOCK_NO_ROOM) {
        return done(senseless("a block is neither reserved nor stored nor refused"));
      }
      out.push_back({static_cast<BlockAnswer>(from.answer()), from.block_id(),
                     SegmentId(from.segment_id()), from.offset()});
    }
    done(std::move(out));
  };
  return connection_->start(std::move(request), received);
}

Result<void> ControlClient::blocks_settle(const Session& session, std::uint32_t store,
                                          const BlocksSettlement& settlement,
                                          Answered<std::vector<bool>> done) {
  pb::Request request;
  auto* const body = request.mutable_blocks_settle();
  control::put_session(session, body);
  body->set_store(store);
  for (const BlockCommit& commit : settlement.commits) {
    auto* const to = body->add_commits();
    to->set_block_id(commit.id);
    to->set_checksum_low(commit.checksum[0]);
    to->set_checksum_high(commit.checksum[1]);
  }
  for (const std::uint64_t id : settlement.dropped) body->add_dropped_ids(id);
  for (const std::uint64_t pin : settlement.pins) body->add_pins(pin);
  const auto received = [done = std::move(done),
                         count = settlement.commits.size()](const Result<Reply>& reply) {
    if (!reply) return done(reply.error());
    done(to_flags(reply->response.blocks_settle().stored(), count));
  };
  return connection_->start(std::move(request), received);
}

Result<BlocksReport> ControlClient::blocks_list(TimePoint deadline) {
  pb::Request request;
  request.mutable_blocks_list();
  const auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  const auto& from = reply->response.blocks_list();
  BlocksReport out;
  out.capacity_bytes = from.capacity_bytes();
  out.flash_bytes = from.flash_bytes();
  for (const pb::BlocksTenant& tenant : from.tenants()) {
    BlocksTenantReport& to = out.tenants.emplace_back();
    to.name = tenant.name();
    to.held_bytes = tenant.held_bytes();
    to.held_flash_bytes = tenant.held_flash_bytes();
    for (const pb::BlocksModel& model : tenant.models()) {
      to.models.push_back({model.name(), model.blocks(), model.bytes(), model.hits(),
                           model.misses(), model.puts(), model.evictions(), model.ddr_bytes(),
                           model.flash_bytes(), model.flash_hits()});
    }
  }
  return out;
}

Result<BlocksCleared> ControlClient::blocks_clear(const std::string& tenant, TimePoint deadline) {
  pb::Request request;
  request.mutable_blocks_clear()->set_tenant(tenant);
  const auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  const auto& from = reply->response.blocks_clear();
  return BlocksCleared{from.blocks(), from.bytes()};
}

}  // namespace ho
