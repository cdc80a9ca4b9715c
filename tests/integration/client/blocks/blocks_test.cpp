// KV blocks through the C ABI, over two real daemons.
#include <hyperoffload/blocks.h>
#include <sys/mman.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <hyperoffload/blocks.hpp>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/client/blocks/blocks_job.hpp"
#include "tests/support/patience.hpp"

namespace {

using namespace ho;
using test::block_key;
using test::blocks_spec;
using test::connect_pool;
using test::count_of;
using test::kBlockBytes;
using test::PoolHandle;
using test::TwoNodes;
using Job = test::BlocksJob;

/// Changes a byte in every slot of a node's segments. @return the number of segments.
std::size_t damage(const std::string& address) {
  const auto client = test::connect(address);
  const auto session = client->open_session("broken", test::soon(), "local");
  REQUIRE(session.ok());
  const auto store = client->blocks_open(*session, {"chat", "", "llama"}, test::soon());
  REQUIRE(store.ok());
  const auto segments = client->segments(test::soon());
  REQUIRE(segments.ok());
  std::vector<SegmentId> ids;
  for (const SegmentInfo& segment : *segments) ids.push_back(segment.id);
  if (ids.empty()) return 0;
  std::promise<Result<std::vector<GrantedSegment>>> answer;
  REQUIRE(client
              ->blocks_attach(*session, *store, "local", ids,
                              [&](auto attached) { answer.set_value(std::move(attached)); })
              .ok());
  const auto attached = answer.get_future().get();
  REQUIRE(attached.ok());
  for (const GrantedSegment& segment : *attached) {
    void* const at = ::mmap(nullptr, segment.length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            segment.fd.get(), 0);
    REQUIRE(at != MAP_FAILED);
    for (std::uint64_t i = 5; i < segment.length_bytes; i += kBlockBytes) {
      static_cast<std::byte*>(at)[i] ^= std::byte{1};
    }
    ::munmap(at, segment.length_bytes);
  }
  return attached->size();
}

}  // namespace

TEST_CASE("client blocks: jobs of a tenant share blocks over all nodes, by local and by tcp") {
  const TwoNodes nodes(blocks_spec());
  Job one(nodes.address(0), "local");
  Job two(nodes.address(1), "tcp");
  CHECK(one.get(0, 40) == 0);
  CHECK(count_of(one.put(0, 40), HO_OK) == 40);
  CHECK(one.get(0, 40) == 40);
  CHECK(two.get(0, 40) == 40);
  CHECK(count_of(two.put(20, 40), HO_OK) == 40);  // the store still has half of them
  CHECK(one.get(20, 40) == 40);
  CHECK(count_of(two.run(HO_BLOCKS_EXISTS, 0, 100), HO_OK) == 60);
  CHECK(count_of(one.run(HO_BLOCKS_REMOVE, 0, 10), HO_OK) == 10);
  CHECK(count_of(two.run(HO_BLOCKS_EXISTS, 0, 100), HO_OK) == 50);
  for (int node : {0, 1}) {  // both hold some
    const auto report = test::connect(nodes.address(node))->blocks_list(test::soon());
    REQUIRE(report.ok());
    REQUIRE(report->tenants.size() == 1);
    CHECK(report->tenants.front().models.front().blocks > 10);
  }
}

TEST_CASE("client blocks: another tenant, or another layout, finds nothing") {
  const TwoNodes nodes(blocks_spec());
  Job one(nodes.address(0));
  REQUIRE(count_of(one.put(0, 10), HO_OK) == 10);
  Job tenant(nodes.address(0), "auto", "search");
  CHECK(tenant.get(0, 10) == 0);
  Job layout(nodes.address(0), "auto", "chat", "other");
  CHECK(layout.get(0, 10) == 0);
  Job same(nodes.address(0));
  CHECK(same.get(0, 10) == 10);
}

TEST_CASE("client blocks: a match finds the longest prefix over all nodes and pins it") {
  const TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0));
  REQUIRE(count_of(job.put(0, 30), HO_OK) == 30);
  REQUIRE(count_of(job.run(HO_BLOCKS_REMOVE, 17, 1), HO_OK) == 1);
  std::vector<std::string> keys;
  std::vector<ho_block> chain;
  for (std::uint64_t i = 0; i < 40; ++i) keys.push_back(block_key(i));
  for (const std::string& one : keys) chain.push_back({one.data(), one.size(), nullptr, 0, 0});
  const auto matched = job.blocks().match(chain);
  CHECK(matched.found == 17);
  REQUIRE(matched.pin != 0);
  for (std::uint64_t i = 0; i < 20; ++i) {  // more keys than the store has room for
    static_cast<void>(job.put(1000 + 32 * i, 32));
  }
  CHECK(job.get(0, 17) == 17);
  job.blocks().unpin(matched.pin);
  CHECK(ho_blocks_unpin(job.blocks().get(), matched.pin) == HO_NOT_FOUND);
  for (std::uint64_t i = 0; i < 20; ++i) static_cast<void>(job.put(5000 + 32 * i, 32));
  CHECK(job.get(0, 17) == 0);
  chain.erase(chain.begin(), chain.begin() + 17);
  CHECK(job.blocks().match(chain).found == 0);
}

TEST_CASE(
    "client blocks: a match takes several requests for a long chain, and 256 pins of a node") {
  const TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0));
  REQUIRE(count_of(job.put(0, 1), HO_OK) == 1);
  const std::string stored = block_key(0);
  const std::string absent = block_key(1);
  std::vector<ho_block> chain(30'000, {stored.data(), stored.size(), nullptr, 0, 0});
  const auto all = job.blocks().match(chain);
  CHECK(all.found == chain.size());
  job.blocks().unpin(all.pin);
  chain[20'000].key = absent.data();
  const auto some = job.blocks().match(chain);
  CHECK(some.found == 20'000);
  job.blocks().unpin(some.pin);
  chain.resize(1);
  for (int i = 0; i < 256; ++i) REQUIRE(job.blocks().match(chain).pin != 0);
  const auto without = job.blocks().match(chain);
  CHECK(without.found == 1);
  CHECK(without.pin == 0);
}

TEST_CASE("client blocks: a killed node's blocks are misses, and new ones go to the other") {
  TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0));
  REQUIRE(count_of(job.put(0, 40), HO_OK) == 40);
  nodes.daemon(1).send(SIGKILL);
  nodes.daemon(1).wait();
  const std::size_t left = job.get(0, 40);
  CHECK(left > 5);
  CHECK(left < 35);
  CHECK(test::eventually(std::chrono::seconds(20),
                         [&] { return count_of(job.put(0, 40), HO_OK) == 40; }));
  CHECK(job.get(0, 40) == 40);
}

TEST_CASE("client blocks: a stopped node costs the deadline, and every block has its outcome",
          "[time]") {
  TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0), "tcp");
  REQUIRE(count_of(job.put(0, 40), HO_OK) == 40);
  nodes.daemon(1).send(SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  const std::size_t left = job.get(0, 40);
  CHECK(left < 40);
  CHECK(count_of(job.put(100, 20), HO_OK) < 20);
  CHECK(std::chrono::steady_clock::now() - begin < test::within(std::chrono::seconds(8)));
  nodes.daemon(1).send(SIGCONT);
}

TEST_CASE("client blocks: a node that stands still is waited for once, and used again later") {
  TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0), "tcp");
  REQUIRE(count_of(job.put(0, 40), HO_OK) == 40);
  nodes.daemon(1).send(SIGSTOP);
  const auto found = job.run(HO_BLOCKS_EXISTS, 0, 40);  // waits for the deadline
  std::vector<std::string> keys;
  std::vector<ho_block> items;
  for (std::uint64_t i = 0; i < found.size(); ++i) {
    if (found[i] != HO_OK) keys.push_back(block_key(i));
  }
  REQUIRE(keys.size() > 5);
  REQUIRE(keys.size() < 35);
  for (const std::string& one : keys) items.push_back({one.data(), one.size(), nullptr, 0, 0});
  bool at_once = false;
  for (int i = 0; i < 5 && !at_once; ++i) {  // one request every 5 s tries, and waits
    job.blocks().submit(HO_BLOCKS_EXISTS, items);
    std::vector<ho_block_done> done = job.blocks().drain();
    at_once = done.size() == items.size();
    while (done.size() < items.size()) {
      for (const ho_block_done& one : job.blocks().drain()) done.push_back(one);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK(std::all_of(done.begin(), done.end(),
                      [](const ho_block_done& one) { return one.status == HO_NOT_FOUND; }));
  }
  CHECK(at_once);
  CHECK(job.blocks().match(items).found == 0);
  nodes.daemon(1).send(SIGCONT);
  CHECK(test::eventually(std::chrono::seconds(20),
                         [&] { return count_of(job.run(HO_BLOCKS_EXISTS, 0, 40), HO_OK) == 40; }));
  CHECK(job.get(0, 40) == 40);
}

TEST_CASE("client blocks: bytes that were changed are a miss, and the block is dropped") {
  const TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0));
  REQUIRE(count_of(job.put(0, 1), HO_OK) == 1);
  REQUIRE(job.get(0, 1) == 1);
  // Another job of the tenant may write these segments. It is faulty and does.
  std::size_t changed = 0;
  for (int node : {0, 1}) changed += damage(nodes.address(node));
  REQUIRE(changed > 0);
  CHECK(job.get(0, 1) == 0);
  CHECK(test::eventually(std::chrono::seconds(20),
                         [&] { return job.run(HO_BLOCKS_EXISTS, 0, 1).front() == HO_NOT_FOUND; }));
  CHECK(count_of(job.put(0, 1), HO_OK) == 1);
  CHECK(job.get(0, 1) == 1);
}

TEST_CASE("client blocks: bad requests change nothing, and memory in use stays registered") {
  const TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0));
  const std::string good = block_key(1);
  const std::string shorter(15, 'x');
  std::uint64_t ticket = 0;
  std::vector<std::byte> elsewhere(kBlockBytes);
  const auto submit = [&](const ho_block& item) {
    return ho_blocks_submit(job.blocks().get(), HO_BLOCKS_PUT, &item, 1, &ticket);
  };
  CHECK(submit({shorter.data(), shorter.size(), job.slot(0), kBlockBytes, 0}) ==
        HO_INVALID_ARGUMENT);
  CHECK(submit({good.data(), good.size(), job.slot(0), kBlockBytes / 2, 0}) == HO_INVALID_ARGUMENT);
  CHECK(submit({good.data(), good.size(), elsewhere.data(), kBlockBytes, 0}) ==
        HO_INVALID_ARGUMENT);
  const std::vector<ho_block> many(65'537, {good.data(), good.size(), nullptr, 0, 0});
  const auto ask = [&](std::size_t count) {
    return ho_blocks_submit(job.blocks().get(), HO_BLOCKS_EXISTS, many.data(), count, &ticket);
  };
  CHECK(ask(many.size()) == HO_INVALID_ARGUMENT);  // HO_BUSY would say that it may go later
  CHECK(job.blocks().drain().empty());
  REQUIRE(submit({good.data(), good.size(), job.slot(0), kBlockBytes, 0}) == HO_OK);
  CHECK(ask(many.size() - 1) == HO_BUSY);
  CHECK(ho_unregister(job.pool(), job.slot(0)) == HO_CONFLICT);
  CHECK(ho_disconnect(job.pool()) == HO_CONFLICT);
}

TEST_CASE("client blocks: options that are out of their limits are refused, and no node is lost") {
  const TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0));
  const auto opened = [&](const auto& change) {
    ho_blocks_options options{};
    options.struct_bytes = sizeof(options);
    change(options);
    ho_blocks* blocks = nullptr;
    const ho_status status = ho_blocks_open(job.pool(), &options, &blocks);
    REQUIRE(ho_blocks_close(blocks) == HO_OK);
    return status;
  };
  const char* const not_utf8 = "caf\xe9";
  CHECK(opened([&](auto& options) { options.tenant = not_utf8; }) == HO_INVALID_ARGUMENT);
  CHECK(opened([&](auto& options) { options.model = not_utf8; }) == HO_INVALID_ARGUMENT);
  CHECK(opened([](auto& options) { options.struct_bytes = 0; }) == HO_INVALID_ARGUMENT);
  const std::uint64_t large = 4 * kMiB;  // a segment has 2 MiB
  CHECK(opened([&](auto& options) {
          options.block_bytes = &large;
          options.block_bytes_count = 1;
        }) == HO_INVALID_ARGUMENT);
  CHECK(opened([&](auto& options) { options.block_bytes = &large; }) == HO_INVALID_ARGUMENT);
  CHECK_THAT(ho_last_error(), Catch::Contains("block_bytes: 1 to 16 sizes"));
  CHECK(opened([&](auto& options) { options.salt = not_utf8; }) == HO_OK);  // stays in the job
  CHECK(opened([&](auto& options) { options.secret = "\xff\xfe 16 bytes or more"; }) == HO_OK);
  CHECK(count_of(job.put(0, 40), HO_OK) == 40);
  CHECK(job.get(0, 40) == 40);
}

TEST_CASE("client blocks: requests that are under way when a job ends are let go") {
  const TwoNodes nodes(blocks_spec());
  const std::string good = block_key(1);
  for (int round = 0; round < 40; ++round) {
    Job job(nodes.address(0));
    std::uint64_t ticket = 0;
    const ho_block item{good.data(), good.size(), job.slot(0), kBlockBytes, 0};
    const auto op = round % 2 == 0 ? HO_BLOCKS_PUT : HO_BLOCKS_GET;
    CHECK(ho_blocks_submit(job.blocks().get(), op, &item, 1, &ticket) == HO_OK);
    std::this_thread::sleep_for(std::chrono::microseconds(50 * (round % 8)));
  }
}

TEST_CASE("client blocks: a removal that no node was asked for does not say that a block is gone") {
  TwoNodes nodes(blocks_spec());
  Job job(nodes.address(0));
  REQUIRE(count_of(job.put(0, 4), HO_OK) == 4);
  for (int node : {0, 1}) {
    nodes.daemon(node).send(SIGKILL);
    nodes.daemon(node).wait();
  }
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(count_of(job.run(HO_BLOCKS_REMOVE, 0, 4), HO_UNAVAILABLE) == 4);
  }
  CHECK(job.get(0, 4) == 0);
}

TEST_CASE("client blocks: where all nodes are lost, an open does not say that none has a store") {
  TwoNodes nodes(blocks_spec());
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  for (int node : {0, 1}) {
    nodes.daemon(node).send(SIGKILL);
    nodes.daemon(node).wait();
  }
  ho_pool_room room{};
  room.struct_bytes = sizeof(room);
  REQUIRE(test::eventually(std::chrono::seconds(20), [&] {
    return ho_pool_get_room(pool.get(), HO_ALL_NODES, &room) == HO_OK && room.nodes == 0;
  }));
  ho_blocks_options options{};
  options.struct_bytes = sizeof(options);
  ho_blocks* blocks = nullptr;
  CHECK(ho_blocks_open(pool.get(), &options, &blocks) == HO_UNAVAILABLE);
}

TEST_CASE("client blocks: a pool without a store says so") {
  const TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  ho_blocks_options options{};
  options.struct_bytes = sizeof(options);
  options.block_bytes = &kBlockBytes;
  options.block_bytes_count = 1;
  ho_blocks* blocks = nullptr;
  CHECK(ho_blocks_open(pool.get(), &options, &blocks) == HO_UNSUPPORTED);
}
