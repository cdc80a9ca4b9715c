// A job's blocks over nodes that fail in every way that the port allows.
#include "client/blocks/blocks.hpp"

#include <poll.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <thread>

#include "common/base/checksum.hpp"
#include "common/base/prng.hpp"
#include "tests/support/seeds.hpp"
#include "tests/support/sim_transport.hpp"
#include "tests/unit/client/faulty_node.hpp"

namespace {

using namespace ho;
using namespace ho::client;
using namespace std::chrono_literals;

constexpr std::uint64_t kBlock = kFaultyBlock;
constexpr std::size_t kNodes = 3;

std::array<std::byte, kBlock> content_of(std::uint64_t number) {
  std::array<std::byte, kBlock> out{};
  Prng random(number + 1);
  for (std::size_t i = 0; i < kBlock; i += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(out.data() + i, &word, 8);
  }
  return out;
}

BlockName name_of(std::uint64_t number) {
  std::array<std::uint64_t, 2> key{number, 7};
  return name_block("test", std::as_bytes(std::span(key)));
}

/// A transfer thread over simulated nodes, and blocks on them.
class World {
 public:
  explicit World(std::uint64_t seed) {
    std::vector<Engine::Driver> drivers(1);
    drivers[0].transport =
        std::make_unique<test::SimTransport>(fabric_, clock_, test::SimLink{}, seed);
    drivers[0].port.op_deadline = 1500ms;
    auto door = std::make_shared<Doorbell>();
    engine_.emplace(std::move(drivers), door);
    Blocks::Options options;
    options.deadline = 60ms;
    nodes_.resize(kNodes);
    for (std::uint32_t i = 0; i < kNodes; ++i) {
      faults_.push_back(std::make_shared<NodeFault>(door));
      faults_.back()->set_resumable();
      auto store = start_daemon(i, seed + i);
      engine_->call([&] {
        engine_->add_node({std::to_string(i), DriverIndex(0), store.peer, faults_.back()});
      });
      options.nodes.push_back({NodeId(static_cast<std::uint16_t>(i)), NodeIndex(i), DriverIndex(0),
                               faults_.back(), std::move(store)});
    }
    blocks_ = *Blocks::create(*engine_, std::move(options));
    local_[0] =
        *engine_->call([&] { return engine_->transport(DriverIndex(0)).register_memory(memory_); });
  }
  ~World() {
    for (FaultyNode* node : nodes_) node->answer_late();
    blocks_->close();
    answers_.settle();
    blocks_.reset();  // while the nodes' answers still come
  }

  /// Another daemon takes the node's place, without blocks. It gives the same numbers again.
  void restart(std::uint32_t node, std::uint64_t seed) {
    const NodeIndex index(node);
    faults_before_ += nodes_[node]->faults();
    nodes_[node]->close();
    nodes_[node]->answer_late();
    engine_->call([&] { engine_->hold(index); });
    while (!engine_->call([&] { return engine_->quiet(index); })) std::this_thread::yield();
    auto store = start_daemon(node, seed);
    engine_->call([&] { engine_->resume(index, store.peer); });
    blocks_->reopened(index, std::move(store));
  }
  /// Its next daemon has no store.
  void end_store(std::uint32_t node) {
    nodes_[node]->close();
    blocks_->reopened(NodeIndex(node), {});
  }
  /// Puts that the node's daemon of now stored.
  [[nodiscard]] std::size_t stored(std::size_t node) const { return nodes_[node]->stored(); }
  [[nodiscard]] bool lost(std::size_t node) const {
    return faults_[node]->reason() != FaultReason::kNone;
  }

  [[nodiscard]] Blocks& blocks() { return *blocks_; }
  [[nodiscard]] std::byte* slot(std::size_t at) { return memory_.data() + at * kBlock; }
  [[nodiscard]] LocalHandles local() const { return local_; }
  void lose(std::size_t node) { faults_[node]->report(FaultReason::kConnectionLost); }
  void answer_late() {
    for (FaultyNode* node : nodes_) node->answer_late();
  }
  [[nodiscard]] std::size_t faults() const {
    std::size_t sum = faults_before_;
    for (const FaultyNode* node : nodes_) sum += node->faults();
    return sum;
  }

 private:
  BlocksStore start_daemon(std::uint32_t node, std::uint64_t seed) {
    const std::string address = std::to_string(node) + "." + std::to_string(++daemons_);
    const auto peer = engine_->call([&] {
      fabric_.add_peer(address);
      return *engine_->transport(DriverIndex(0)).connect({NodeId(0), address}, clock_.now() + 1s);
    });
    auto made = std::make_unique<FaultyNode>(*engine_, answers_, fabric_, address, seed);
    nodes_[node] = made.get();
    return {peer, std::move(made)};
  }

  SteadyClock clock_;
  std::uint64_t daemons_ = 0;
  std::size_t faults_before_ = 0;  ///< at daemons that have ended
  test::SimFabric fabric_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(256 * kBlock);
  std::vector<std::shared_ptr<NodeFault>> faults_;
  std::optional<Engine> engine_;
  std::vector<FaultyNode*> nodes_;
  LocalHandles local_;
  std::shared_ptr<Blocks> blocks_;
  Answers answers_;  ///< last, so that it ends first, while everything that it calls still exists
};

/// Requests in flight, and the bytes that they must bring.
class Requests {
 public:
  explicit Requests(World& world) : world_(world) {
    for (std::size_t slot = 0; slot < 256; ++slot) free_.push_back(slot);
  }
  [[nodiscard]] bool room(std::size_t count) const { return free_.size() >= count; }
  [[nodiscard]] bool empty() const { return open_.empty(); }

  void start(BlockOp op, const std::vector<std::uint64_t>& numbers) {
    std::vector<BlockItem> items;
    std::vector<Expected> expected;
    for (const std::uint64_t number : numbers) {
      BlockItem item;
      item.name = name_of(number);
      item.data = world_.slot(free_.back());
      item.bytes = kBlock;
      item.local = world_.local();
      if (op == BlockOp::kPut) std::memcpy(item.data, content_of(number).data(), kBlock);
      expected.push_back({op, number, free_.back(), false});
      free_.pop_back();
      items.push_back(item);
    }
    const auto ticket = world_.blocks().submit(op, items);
    REQUIRE(ticket.ok());
    open_[*ticket] = std::move(expected);
  }
  void drain() {
    std::array<BlockDone, 32> done;
    const std::size_t count = world_.blocks().drain(done);
    for (std::size_t i = 0; i < count; ++i) {
      const auto request = open_.find(done[i].ticket);
      REQUIRE(request != open_.end());
      Expected& one = request->second.at(done[i].index);
      REQUIRE_FALSE(one.ended);
      one.ended = true;
      outcomes += 1;
      if (one.op == BlockOp::kGet && done[i].code == Errc::kOk) {
        hits += 1;
        const auto content = content_of(one.number);
        REQUIRE(std::memcmp(content.data(), world_.slot(one.slot), kBlock) == 0);
      }
      if (one.op == BlockOp::kGet || one.op == BlockOp::kExists) {
        REQUIRE((done[i].code == Errc::kOk || done[i].code == Errc::kNotFound));
      }
      free_.push_back(one.slot);
      const auto& all = request->second;
      if (std::all_of(all.begin(), all.end(), [](const Expected& e) { return e.ended; })) {
        open_.erase(request);
      }
    }
  }
  void wait() {
    pollfd ready{world_.blocks().event_fd(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 10'000) == 1);
    drain();
  }

  std::size_t outcomes = 0;
  std::size_t hits = 0;

 private:
  struct Expected {
    BlockOp op;
    std::uint64_t number;
    std::size_t slot;
    bool ended;
  };
  World& world_;
  std::vector<std::size_t> free_;
  std::map<std::uint64_t, std::vector<Expected>> open_;
};

/// Some random requests. @return how many blocks.
std::size_t submit_some(World& world, Requests& requests, Prng& random) {
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = random.below(16) + 1; i > 0; --i) numbers.push_back(random.below(60));
  while (!requests.room(numbers.size())) requests.wait();
  const std::uint64_t kind = random.below(10);
  const BlockOp op = kind < 5   ? BlockOp::kGet
                     : kind < 8 ? BlockOp::kPut
                     : kind < 9 ? BlockOp::kExists
                                : BlockOp::kRemove;
  requests.start(op, numbers);
  requests.drain();
  if (random.below(100) == 0) world.answer_late();
  return numbers.size();
}

}  // namespace

TEST_CASE("blocks: under 10,000 faults each block has one outcome, and no get has wrong bytes") {
  std::size_t faults = 0;
  std::size_t hits = 0;
  test::for_each_seed(test::seed_count(8), [&](std::uint64_t seed) {
    INFO("seed " << seed);
    World world(seed);
    Requests requests(world);
    Prng random(seed);
    std::size_t submitted = 0;
    while (world.faults() < 1300) {
      submitted += submit_some(world, requests, random);
      if (submitted > 3000 && seed % 2 == 0) world.lose(seed / 2 % kNodes);
    }
    while (!requests.empty()) requests.wait();
    CHECK(requests.outcomes == submitted);
    faults += world.faults();
    hits += requests.hits;
  });
  if (test::only_seed()) return;
  CHECK(faults >= test::seed_count(8) * 1300);
  CHECK(hits > 100);
}

TEST_CASE("blocks: a node whose daemon is restarted under requests stores blocks again") {
  std::size_t hits = 0;
  test::for_each_seed(test::seed_count(4), [&](std::uint64_t seed) {
    INFO("seed " << seed);
    World world(seed);
    Requests requests(world);
    Prng random(seed);
    std::size_t submitted = 0;
    for (std::uint64_t restarts = 0; restarts < 60; ++restarts) {
      for (std::uint64_t i = random.below(20); i > 0; --i) {
        submitted += submit_some(world, requests, random);
      }
      world.restart(static_cast<std::uint32_t>(random.below(kNodes)), seed + 100 * restarts);
    }
    for (std::uint32_t node = 0; node < kNodes; ++node) world.restart(node, seed + node);
    const auto all_store = [&] {
      return world.stored(0) > 0 && world.stored(1) > 0 && world.stored(2) > 0;
    };
    // A faulty node may lose its segment, and has another one only after some gets.
    for (int i = 0; i < 5000 && !all_store(); ++i) {
      submitted += submit_some(world, requests, random);
    }
    while (!requests.empty()) requests.wait();
    CHECK(requests.outcomes == submitted);
    CHECK(all_store());
    for (std::size_t node = 0; node < kNodes; ++node) CHECK_FALSE(world.lost(node));
    hits += requests.hits;
  });
  if (!test::only_seed()) CHECK(hits > 100);
}

TEST_CASE("blocks: the keys of a node whose store does not come back go to the others") {
  World world(3);
  Requests requests(world);
  Prng random(3);
  world.end_store(1);
  for (int i = 0; i < 50; ++i) static_cast<void>(submit_some(world, requests, random));
  while (!requests.empty()) requests.wait();
  CHECK(world.stored(1) == 0);
  CHECK(world.stored(0) + world.stored(2) > 30);
}

TEST_CASE("blocks: the loss of a node moves its keys only") {
  std::size_t moved = 0;
  for (std::uint64_t number = 0; number < 300; ++number) {
    const BlockDigest key = name_of(number).digest;
    const auto best = [&](std::initializer_list<std::uint16_t> nodes) {
      return *std::max_element(nodes.begin(), nodes.end(), [&](auto a, auto b) {
        return block_weight(key, NodeId(a)) < block_weight(key, NodeId(b));
      });
    };
    const std::uint16_t before = best({0, 1, 2});
    const std::uint16_t after = best({0, 2});
    if (before != 1) CHECK(after == before);
    moved += before == 1 ? 1U : 0U;
  }
  CHECK(moved > 60);
  CHECK(moved < 140);
}

TEST_CASE("blocks: parts of a namespace do not run together") {
  const std::vector<std::string> one{"ab", "c"};
  const std::vector<std::string> two{"a", "bc"};
  CHECK(block_space(one) != block_space(two));
  const std::array<std::byte, 16> key{};
  CHECK_FALSE(name_block(block_space(one), key).digest == name_block(block_space(two), key).digest);
}
