// KV blocks through the C ABI, over two real daemons.
#include <hyperoffload/blocks.h>
#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <future>
#include <hyperoffload/blocks.hpp>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using test::connect_pool;
using test::PoolHandle;
using test::TwoNodes;

constexpr std::uint64_t kBlock = 64 * kKiB;  // 32 a segment

test::PoolSpec spec() {
  test::PoolSpec out;
  out.blocks_bytes = 8 * kMiB;
  return out;
}

std::string key(std::uint64_t number) {
  std::string out(16, '\0');
  std::memcpy(out.data(), &number, sizeof(number));
  return out;
}

/// A job with open blocks and memory for `kSlots` of them.
class Job {
 public:
  static constexpr std::size_t kSlots = 64;

  explicit Job(const std::string& address, const char* transport = "auto",
               const char* tenant = "chat", const char* layout = "")
      : pool_(connect_pool(address, transport)), memory_(kSlots * kBlock) {
    REQUIRE(ho_register(pool_.get(), memory_.data(), memory_.size()) == HO_OK);
    ho_blocks_options options{};
    options.tenant = tenant;
    options.model = "llama";
    options.layout = layout;
    options.block_bytes = &kBlock;
    options.block_bytes_count = 1;
    options.deadline_ms = 1500;
    blocks_.emplace(pool_.get(), options);
  }

  [[nodiscard]] std::byte* slot(std::size_t at) { return memory_.data() + at * kBlock; }
  [[nodiscard]] hyperoffload::Blocks& blocks() { return *blocks_; }
  [[nodiscard]] ho_pool* pool() { return pool_.get(); }
  void fill(std::size_t at, std::uint64_t number) {
    Prng random(number + 1);
    for (std::size_t i = 0; i < kBlock; i += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(slot(at) + i, &word, 8);
    }
  }
  [[nodiscard]] bool holds(std::size_t at, std::uint64_t number) {
    std::vector<std::byte> found(slot(at), slot(at) + kBlock);
    fill(at, number);
    return std::memcmp(found.data(), slot(at), kBlock) == 0;
  }
  /// Runs one request over keys first .. first + count - 1, in slots 0 .. count - 1, and waits.
  std::vector<ho_status> run(ho_blocks_op op, std::uint64_t first, std::size_t count) {
    std::vector<std::string> keys;
    std::vector<ho_block> items;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(key(first + i));
    for (std::size_t i = 0; i < count; ++i) {
      items.push_back({keys[i].data(), keys[i].size(), slot(i % kSlots), kBlock, 0});
    }
    const std::uint64_t ticket = blocks_->submit(op, items);
    std::vector<ho_status> out(count, HO_CANCELED);
    for (std::size_t left = count; left > 0;) {
      pollfd ready{blocks_->event_fd(), POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 20'000) == 1);
      for (const ho_block_done& done : blocks_->drain()) {
        REQUIRE(done.ticket == ticket);
        REQUIRE(out.at(done.index) == HO_CANCELED);
        out[done.index] = done.status;
        left -= 1;
      }
    }
    return out;
  }
  std::vector<ho_status> put(std::uint64_t first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) fill(i, first + i);
    return run(HO_BLOCKS_PUT, first, count);
  }
  /// Gets blocks and checks the bytes of those that it found. @return how many it found.
  std::size_t get(std::uint64_t first, std::size_t count) {
    std::memset(memory_.data(), 0, memory_.size());
    const auto found = run(HO_BLOCKS_GET, first, count);
    std::size_t hits = 0;
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE((found[i] == HO_OK || found[i] == HO_NOT_FOUND));
      if (found[i] != HO_OK) continue;
      hits += 1;
      REQUIRE(holds(i, first + i));
    }
    return hits;
  }

 private:
  PoolHandle pool_;
  std::vector<std::byte> memory_;
  std::optional<hyperoffload::Blocks> blocks_;
};

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
    for (std::uint64_t i = 5; i < segment.length_bytes; i += kBlock) {
      static_cast<std::byte*>(at)[i] ^= std::byte{1};
    }
    ::munmap(at, segment.length_bytes);
  }
  return attached->size();
}

std::size_t count_of(const std::vector<ho_status>& all, ho_status status) {
  return static_cast<std::size_t>(std::count(all.begin(), all.end(), status));
}

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
  test::PoolSpec out = spec();
  out.nodes = 1;
  out.flash_bytes = 96 * kMiB;
  out.blocks_flash_bytes = 32 * kMiB;
  return out;
}

}  // namespace

TEST_CASE("client blocks: jobs of a tenant share blocks over all nodes, by local and by tcp") {
  const TwoNodes nodes(spec());
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
  const TwoNodes nodes(spec());
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
  const TwoNodes nodes(spec());
  Job job(nodes.address(0));
  REQUIRE(count_of(job.put(0, 30), HO_OK) == 30);
  REQUIRE(count_of(job.run(HO_BLOCKS_REMOVE, 17, 1), HO_OK) == 1);
  std::vector<std::string> keys;
  std::vector<ho_block> chain;
  for (std::uint64_t i = 0; i < 40; ++i) keys.push_back(key(i));
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
  const TwoNodes nodes(spec());
  Job job(nodes.address(0));
  REQUIRE(count_of(job.put(0, 1), HO_OK) == 1);
  const std::string stored = key(0);
  const std::string absent = key(1);
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
  TwoNodes nodes(spec());
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
  TwoNodes nodes(spec());
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

TEST_CASE("client blocks: bytes that were changed are a miss, and the block is dropped") {
  const TwoNodes nodes(spec());
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
  const TwoNodes nodes(spec());
  Job job(nodes.address(0));
  const std::string good = key(1);
  const std::string shorter(15, 'x');
  std::uint64_t ticket = 0;
  std::vector<std::byte> elsewhere(kBlock);
  const auto submit = [&](const ho_block& item) {
    return ho_blocks_submit(job.blocks().get(), HO_BLOCKS_PUT, &item, 1, &ticket);
  };
  CHECK(submit({shorter.data(), shorter.size(), job.slot(0), kBlock, 0}) == HO_INVALID_ARGUMENT);
  CHECK(submit({good.data(), good.size(), job.slot(0), kBlock / 2, 0}) == HO_INVALID_ARGUMENT);
  CHECK(submit({good.data(), good.size(), elsewhere.data(), kBlock, 0}) == HO_INVALID_ARGUMENT);
  CHECK(job.blocks().drain().empty());
  REQUIRE(submit({good.data(), good.size(), job.slot(0), kBlock, 0}) == HO_OK);
  CHECK(ho_unregister(job.pool(), job.slot(0)) == HO_CONFLICT);
  CHECK(ho_disconnect(job.pool()) == HO_CONFLICT);
}

TEST_CASE("client blocks: options that are out of their limits are refused, and no node is lost") {
  const TwoNodes nodes(spec());
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
  CHECK(opened([&](auto& options) { options.salt = not_utf8; }) == HO_OK);  // stays in the job
  CHECK(opened([&](auto& options) { options.secret = "\xff\xfe 16 bytes or more"; }) == HO_OK);
  CHECK(count_of(job.put(0, 40), HO_OK) == 40);
  CHECK(job.get(0, 40) == 40);
}

TEST_CASE("client blocks: requests that are under way when a job ends are let go") {
  const TwoNodes nodes(spec());
  const std::string good = key(1);
  for (int round = 0; round < 40; ++round) {
    Job job(nodes.address(0));
    std::uint64_t ticket = 0;
    const ho_block item{good.data(), good.size(), job.slot(0), kBlock, 0};
    const auto op = round % 2 == 0 ? HO_BLOCKS_PUT : HO_BLOCKS_GET;
    CHECK(ho_blocks_submit(job.blocks().get(), op, &item, 1, &ticket) == HO_OK);
    std::this_thread::sleep_for(std::chrono::microseconds(50 * (round % 8)));
  }
}

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
  for (std::uint64_t i = 0; i < 16; ++i) keys.push_back(key(i));
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

TEST_CASE("client blocks: where all nodes are lost, an open does not say that none has a store") {
  TwoNodes nodes(spec());
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
  options.block_bytes = &kBlock;
  options.block_bytes_count = 1;
  ho_blocks* blocks = nullptr;
  CHECK(ho_blocks_open(pool.get(), &options, &blocks) == HO_UNSUPPORTED);
}
