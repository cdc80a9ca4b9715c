// KV blocks on flash through the C ABI, over real daemons.
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/client/blocks/blocks_job.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using test::block_key;
using test::blocks_spec;
using test::count_of;
using test::TwoNodes;
using Job = test::BlocksJob;

/// What a node's store says of the only tenant's only model.
BlocksModelReport report_of(const TwoNodes& nodes, int node) {
  const auto report = test::connect(nodes.address(node))->blocks_list(test::soon());
  REQUIRE(report.ok());
  REQUIRE(report->tenants.size() == 1);
  REQUIRE(report->tenants.front().models.size() == 1);
  return report->tenants.front().models.front();
}

/// Puts blocks so that each is saved before its slot in DDR is needed. Puts themselves never wait
/// for flash.
void put_slowly(Job& job, const TwoNodes& nodes, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t i = first; i < first + count; i += 8) {
    REQUIRE(count_of(job.put(i, 8), HO_OK) == 8);
    REQUIRE(test::eventually(std::chrono::seconds(20), [&] {
      const BlocksModelReport report = report_of(nodes, 0);
      return report.flash_bytes + 7 * kMiB + 512 * kKiB >= report.bytes;
    }));
  }
}

/// Four times as much flash as DDR.
test::PoolSpec flash_spec() {
  test::PoolSpec out = blocks_spec();
  out.nodes = 1;
  out.flash_bytes = 96 * kMiB;
  out.blocks_flash_bytes = 32 * kMiB;
  return out;
}

}  // namespace

#define SKIP_WITHOUT_FLASH()                                          \
  {                                                                   \
    const test::TempFolder where;                                     \
    test::make_file(where.file("flash"), kMiB);                       \
    const std::string why = test::no_flash_here(where.file("flash")); \
    if (!why.empty()) return test::skip(why);                         \
  }

TEST_CASE("client blocks: what DDR has no room for is kept on flash and read from there") {
  SKIP_WITHOUT_FLASH();
  const TwoNodes nodes(flash_spec());
  Job one(nodes.address(0), "local");
  Job two(nodes.address(0), "tcp");
  constexpr std::uint64_t kBlocks = 320;  // 20 MiB; DDR has 8 MiB
  put_slowly(one, nodes, 0, kBlocks);
  const BlocksModelReport full = report_of(nodes, 0);
  CHECK(full.evictions == 0);
  CHECK(full.blocks == kBlocks);
  CHECK(full.ddr_bytes <= 8 * kMiB);
  CHECK(count_of(two.run(HO_BLOCKS_EXISTS, 0, kBlocks), HO_OK) == kBlocks);
  for (Job* const job : {&one, &two}) {
    std::size_t hits = 0;
    for (std::uint64_t i = 0; i < kBlocks; i += 32) hits += job->get(i, 32);
    CHECK(hits == kBlocks);
  }
  const BlocksModelReport read = report_of(nodes, 0);
  CHECK(read.flash_hits > kBlocks / 2);
  CHECK(read.hits == 2 * kBlocks);
  CHECK(read.misses == 0);
}

TEST_CASE("client blocks: a full flash evicts, and a match pins what is on flash") {
  SKIP_WITHOUT_FLASH();
  const TwoNodes nodes(flash_spec());
  Job job(nodes.address(0));
  put_slowly(job, nodes, 0, 16);
  put_slowly(job, nodes, 1000, 160);  // now they are on flash only
  std::vector<std::string> keys;
  std::vector<ho_block> chain;
  for (std::uint64_t i = 0; i < 16; ++i) keys.push_back(block_key(i));
  for (const std::string& one : keys) chain.push_back({one.data(), one.size(), nullptr, 0, 0});
  const auto matched = job.blocks().match(chain);
  CHECK(matched.found == 16);
  for (std::uint64_t i = 0; i < 100; ++i) static_cast<void>(job.put(2000 + 32 * i, 32));
  CHECK(job.get(0, 16) == 16);
  job.blocks().unpin(matched.pin);
  CHECK(report_of(nodes, 0).evictions > 0);
  const BlocksModelReport full = report_of(nodes, 0);
  CHECK(full.flash_bytes <= 32 * kMiB);
}

TEST_CASE(
    "client blocks: blocks that decayed on flash are misses, and the tenant's clear ends all") {
  SKIP_WITHOUT_FLASH();
  const TwoNodes nodes(flash_spec());
  Job job(nodes.address(0));
  for (std::uint64_t i = 0; i < 256; i += 16) {
    REQUIRE(count_of(job.put(i, 16), HO_OK) == 16);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  REQUIRE(report_of(nodes, 0).flash_bytes > 4 * kMiB);
  {  // what is behind the log
    std::fstream file(nodes.flash_path(0), std::ios::in | std::ios::out | std::ios::binary);
    const std::vector<char> zeros(1 << 20, '\0');
    for (std::uint64_t at = 4 * kMiB; at < 96 * kMiB; at += zeros.size()) {
      file.seekp(static_cast<std::streamoff>(at));
      file.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
    }
  }
  std::size_t hits = 0;
  for (std::uint64_t i = 0; i < 256; i += 32) hits += job.get(i, 32);  // checks each hit's bytes
  CHECK(hits < 256);
  CHECK(hits > 32);
  const auto admin = test::connect(nodes.address(0));
  const auto tenants = admin->blocks_list(test::soon());
  REQUIRE(tenants.ok());
  REQUIRE(admin->blocks_clear(tenants->tenants.front().name, test::soon()).ok());
  CHECK(job.get(0, 32) == 0);
  CHECK(test::eventually(std::chrono::seconds(20),  // once the memory is wiped
                         [&] { return count_of(job.put(0, 32), HO_OK) == 32; }));
  CHECK(job.get(0, 32) == 32);
}
