#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::test {

inline constexpr std::uint64_t kBlock = 256 * kKiB;                       // eight a segment
inline constexpr const char* kStore = "blocks { ddr_bytes: 8388608 }\n";  // four segments

inline BlockDigest key(std::uint64_t number) { return {number, ~number}; }

/// Waits for the answer of a request that does not.
template <typename Value, typename Start>
Result<Value> answer_of(const Start& start) {
  auto promise = std::make_shared<std::promise<Result<Value>>>();
  auto future = promise->get_future();
  const auto started =
      start([promise](Result<Value> value) { promise->set_value(std::move(value)); });
  if (!started) return started.error();
  REQUIRE(future.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  return future.get();
}

/// A session that has a tenant's blocks open.
struct Job {
  Job(const std::string& address, const std::string& tenant, const std::string& secret = "")
      : client(connect(address)) {
    auto opened = client->open_session("test", soon(), "local");
    REQUIRE(opened.ok());
    session = *opened;
    const BlocksTenantSpec spec{tenant, secret, "llama"};
    const auto made = client->blocks_open(session, spec, soon());
    REQUIRE(made.ok());
    store = *made;
  }
  Result<std::vector<BlockSlot>> try_reserve(std::uint64_t first, std::uint64_t count,
                                             std::uint64_t bytes = kBlock) {
    std::vector<BlockWish> wishes;
    for (std::uint64_t i = 0; i < count; ++i) wishes.push_back({key(first + i), bytes, 1});
    return answer_of<std::vector<BlockSlot>>(
        [&](auto done) { return client->blocks_reserve(session, store, wishes, std::move(done)); });
  }
  std::vector<BlockSlot> reserve(std::uint64_t first, std::uint64_t count,
                                 std::uint64_t bytes = kBlock) {
    auto slots = try_reserve(first, count, bytes);
    REQUIRE(slots.ok());
    return *slots;
  }
  std::vector<bool> settle(const BlocksSettlement& settlement) {
    auto stored = answer_of<std::vector<bool>>([&](auto done) {
      return client->blocks_settle(session, store, settlement, std::move(done));
    });
    REQUIRE(stored.ok());
    return *stored;
  }
  /// In batches of four: what is reserved and not committed is not evicted.
  std::uint64_t put_all(std::uint64_t first, std::uint64_t count) {
    std::uint64_t stored = 0;
    for (std::uint64_t i = 0; i < count; i += 4) stored += put(first + i, 4);
    return stored;
  }
  std::uint64_t put(std::uint64_t first, std::uint64_t count, std::uint64_t bytes = kBlock) {
    BlocksSettlement settlement;
    for (const BlockSlot& slot : reserve(first, count, bytes)) {
      if (slot.answer == BlockAnswer::kReserved) settlement.commits.push_back({slot.id, {1, 2}});
    }
    std::uint64_t stored = 0;
    for (const bool ok : settle(settlement)) stored += ok ? 1U : 0U;
    return stored;
  }
  std::vector<BlockLocation> locate(std::uint64_t first, std::uint64_t count) {
    std::vector<BlockDigest> keys;
    for (std::uint64_t i = 0; i < count; ++i) keys.push_back(key(first + i));
    auto places = answer_of<std::vector<BlockLocation>>(
        [&](auto done) { return client->blocks_locate(session, store, keys, std::move(done)); });
    REQUIRE(places.ok());
    return *places;
  }
  std::uint64_t stored(std::uint64_t first, std::uint64_t count) {
    std::uint64_t out = 0;
    for (const BlockLocation& place : locate(first, count)) out += place.id != 0 ? 1U : 0U;
    return out;
  }
  /// One after the other: DDR need not hold them at a time.
  std::uint64_t stored_in_turn(std::uint64_t first, std::uint64_t count) {
    std::uint64_t out = 0;
    for (std::uint64_t i = 0; i < count; ++i) out += stored(first + i, 1);
    return out;
  }
  Result<std::vector<GrantedSegment>> attach(SegmentId segment) {
    return answer_of<std::vector<GrantedSegment>>([&](auto done) {
      return client->blocks_attach(session, store, "local", {segment}, std::move(done));
    });
  }

  std::unique_ptr<ControlClient> client;
  Session session;
  std::uint32_t store = 0;
};

}  // namespace ho::test
