// A job's blocks over nodes that fail in every way that the port allows.
#include "client/blocks/blocks.hpp"

#include <poll.h>

#include <array>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include "common/base/checksum.hpp"
#include "common/base/prng.hpp"
#include "tests/support/seeds.hpp"
#include "tests/support/sim_transport.hpp"

namespace {

using namespace ho;
using namespace ho::client;
using namespace std::chrono_literals;

constexpr std::uint64_t kBlock = 4096;
constexpr std::uint64_t kSlots = 32;  // per node
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

/// The thread that the nodes answer on.
class Answers {
 public:
  Answers() : thread_([this] { run(); }) {}
  ~Answers() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!ended_ || !work_.empty()) {
      if (work_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool ended_ = false;
  std::thread thread_;
};

/// A store that evicts blocks without notice, reuses slots that are in use, and injects faults. Its
/// state belongs to the answering thread.
class FaultyNode final : public BlocksControl {
 public:
  FaultyNode(Engine& engine, Answers& answers, test::SimFabric& fabric, std::string address,
             std::uint64_t seed)
      : engine_(engine),
        answers_(answers),
        fabric_(fabric),
        address_(std::move(address)),
        random_(seed),
        memory_(kSlots * kBlock) {
    replace_segment();
  }

  [[nodiscard]] std::size_t faults() const { return faults_.load(); }
  /// Answers the requests that were held back, long after their deadlines.
  void answer_late() {
    answers_.post([this] {
      for (auto& late : std::exchange(late_, {})) late();
    });
  }

  Result<void> attach(const std::vector<SegmentId>& segments,
                      Answered<std::vector<GrantedSegment>> done) override {
    return later([this, segments, done] {
      if (chance(10)) return done(Error(Errc::kIo, "injected"));
      std::vector<GrantedSegment> out;
      for (const SegmentId id : segments) {
        if (id != segment_ || chance(20)) continue;
        out.emplace_back();
        out.back().id = id;
        out.back().length_bytes = memory_.size();
        out.back().key = key_;
      }
      done(std::move(out));
    });
  }
  Result<void> locate(std::span<const BlockDigest> keys,
                      Answered<std::vector<BlockLocation>> done) override {
    const std::vector<BlockDigest> wanted(keys.begin(), keys.end());
    return later([this, wanted, done] {
      if (chance(20)) return done(Error(Errc::kUnavailable, "injected"));
      if (chance(100)) revoke();
      std::vector<BlockLocation> out;
      for (const BlockDigest& key : wanted) {
        const auto found = stored_.find({key.low, key.high});
        out.push_back(found == stored_.end() ? BlockLocation{} : found->second);
        if (out.back().id != 0) spoil(out.back());
      }
      done(std::move(out));
    });
  }
  Result<void> ask(BlocksQuestion question, std::span<const BlockDigest> keys,
                   Answered<std::vector<bool>> done) override {
    const std::vector<BlockDigest> wanted(keys.begin(), keys.end());
    return later([this, question, wanted, done] {
      if (chance(20)) return done(Error(Errc::kCorrupt, "injected"));
      std::vector<bool> out;
      for (const BlockDigest& key : wanted) {
        out.push_back(stored_.count({key.low, key.high}) > 0);
        if (question == BlocksQuestion::kRemove) stored_.erase({key.low, key.high});
      }
      done(std::move(out));
    });
  }
  Result<void> pin(std::span<const BlockDigest> /*keys*/, std::chrono::milliseconds /*time*/,
                   Answered<BlocksPinned> /*done*/) override {
    return Error(Errc::kBusy, "not here");
  }
  Result<void> reserve(std::span<const BlockWish> wishes,
                       Answered<std::vector<BlockSlot>> done) override {
    const std::vector<BlockWish> wanted(wishes.begin(), wishes.end());
    return later([this, wanted, done] {
      if (chance(20)) return done(Error(Errc::kExhausted, "injected"));
      std::vector<BlockSlot> out;
      for (const BlockWish& wish : wanted) {
        if (stored_.count({wish.key.low, wish.key.high}) > 0) {
          out.push_back({BlockAnswer::kExists, 0, {}, 0});
        } else if (chance(20)) {
          out.push_back({BlockAnswer::kNoRoom, 0, {}, 0});
        } else {
          out.push_back(take_slot(wish));
        }
      }
      done(std::move(out));
    });
  }
  Result<void> settle(const BlocksSettlement& settlement,
                      Answered<std::vector<bool>> done) override {
    return later([this, settlement, done] {
      if (chance(20)) return done(Error(Errc::kUnavailable, "injected"));
      std::vector<bool> out;
      for (const BlockCommit& commit : settlement.commits) {
        const auto found = reserved_.find(commit.id);
        const bool ended = found == reserved_.end() || chance(20);
        out.push_back(!ended);
        if (ended) continue;
        BlockLocation place = found->second.second;
        place.checksum = commit.checksum;
        stored_[found->second.first] = place;
        reserved_.erase(found);
      }
      for (const std::uint64_t id : settlement.dropped) reserved_.erase(id);
      done(std::move(out));
    });
  }

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;

  /// True once in `of` calls on average. Counts it as a fault.
  bool chance(std::uint64_t of) {
    if (random_.below(of) != 0) return false;
    faults_.fetch_add(1);
    return true;
  }
  /// The request is refused at once, answered late, or answered.
  Result<void> later(std::function<void()> answer) {
    {
      const std::lock_guard lock(start_mutex_);
      if (start_random_.below(50) == 0) {
        faults_.fetch_add(1);
        return Error(Errc::kBusy, "injected");
      }
    }
    answers_.post([this, answer = std::move(answer)] {
      if (random_.below(300) != 0) return answer();
      faults_.fetch_add(1);
      late_.push_back(answer);
    });
    return {};
  }
  void spoil(BlockLocation& place) {
    if (chance(12)) place.offset_bytes = random_.below(kSlots) * kBlock;
    if (chance(12)) place.checksum[random_.below(2)] ^= 1U << random_.below(32);
    if (chance(12)) place.length_bytes += kBlock;
    if (chance(12)) place.offset_bytes = ~std::uint64_t{0} - kBlock;
    if (chance(12)) place.segment = SegmentId(place.segment.value() + 1000);
    if (chance(12)) {
      const std::uint64_t at = place.offset_bytes % memory_.size() + random_.below(kBlock);
      engine_.call([&] { memory_[at % memory_.size()] ^= std::byte{4}; });
    }
  }
  BlockSlot take_slot(const BlockWish& wish) {
    const std::uint64_t offset = next_slot_++ % kSlots * kBlock;
    for (auto at = stored_.begin(); at != stored_.end();) {
      // Once in eight times it keeps the old block's entry.
      const bool there = at->second.offset_bytes == offset && !chance(8);
      at = there ? stored_.erase(at) : std::next(at);
    }
    const std::uint64_t id = next_id_++;
    reserved_[id] = {{wish.key.low, wish.key.high}, {id, segment_, offset, kBlock, {}}};
    return {BlockAnswer::kReserved, id, segment_, offset};
  }
  void replace_segment() {
    engine_.call(
        [&] { key_ = fabric_.expose(address_, memory_, transport::Rights::kReadWrite).key; });
    segment_ = SegmentId(next_segment_++);
  }
  void revoke() {
    engine_.call([&] { fabric_.revoke(key_); });
    replace_segment();  // the node still reports blocks in the old one
  }

  Engine& engine_;
  Answers& answers_;
  test::SimFabric& fabric_;
  const std::string address_;
  Prng random_;
  std::mutex start_mutex_;
  Prng start_random_{17};
  std::vector<std::byte> memory_;
  std::string key_;
  SegmentId segment_;
  std::uint64_t next_segment_ = 1;
  std::uint64_t next_slot_ = 0;
  std::uint64_t next_id_ = 1;
  std::map<Key, BlockLocation> stored_;
  std::map<std::uint64_t, std::pair<Key, BlockLocation>> reserved_;
  std::vector<std::function<void()>> late_;
  std::atomic<std::size_t> faults_{0};
};

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
    std::vector<EngineNode> known;
    for (std::uint32_t i = 0; i < kNodes; ++i) {
      const std::string address(1, static_cast<char>('a' + i));
      faults_.push_back(std::make_shared<NodeFault>(door));
      const auto peer = engine_->call([&] {
        fabric_.add_peer(address);
        return *engine_->transport(DriverIndex(0)).connect({NodeId(0), address}, clock_.now() + 1s);
      });
      known.push_back({address, DriverIndex(0), peer, faults_.back()});
      auto node = std::make_unique<FaultyNode>(*engine_, answers_, fabric_, address, seed + i);
      nodes_.push_back(node.get());
      options.nodes.push_back({NodeId(static_cast<std::uint16_t>(i)), NodeIndex(i), DriverIndex(0),
                               peer, faults_.back(), std::move(node)});
    }
    engine_->call([&] { engine_->set_nodes(known); });
    blocks_ = *Blocks::create(*engine_, std::move(options));
    local_[0] =
        *engine_->call([&] { return engine_->transport(DriverIndex(0)).register_memory(memory_); });
  }
  ~World() {
    for (FaultyNode* node : nodes_) node->answer_late();
    blocks_->close();
  }

  [[nodiscard]] Blocks& blocks() { return *blocks_; }
  [[nodiscard]] std::byte* slot(std::size_t at) { return memory_.data() + at * kBlock; }
  [[nodiscard]] LocalHandles local() const { return local_; }
  void lose(std::size_t node) { faults_[node]->report(FaultReason::kConnectionLost); }
  void answer_late() {
    for (FaultyNode* node : nodes_) node->answer_late();
  }
  [[nodiscard]] std::size_t faults() const {
    std::size_t sum = 0;
    for (const FaultyNode* node : nodes_) sum += node->faults();
    return sum;
  }

 private:
  SteadyClock clock_;
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
      if (one.op != BlockOp::kPut) {
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
      std::vector<std::uint64_t> numbers;
      for (std::uint64_t i = random.below(16) + 1; i > 0; --i) numbers.push_back(random.below(60));
      while (!requests.room(numbers.size())) requests.wait();
      const std::uint64_t kind = random.below(10);
      const BlockOp op = kind < 5   ? BlockOp::kGet
                         : kind < 8 ? BlockOp::kPut
                         : kind < 9 ? BlockOp::kExists
                                    : BlockOp::kRemove;
      requests.start(op, numbers);
      submitted += numbers.size();
      requests.drain();
      if (random.below(100) == 0) world.answer_late();
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
