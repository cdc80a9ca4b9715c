#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/blocks/blocks_control.hpp"
#include "client/transfer/engine.hpp"
#include "common/base/prng.hpp"
#include "tests/support/sim_transport.hpp"

namespace ho::client {

inline constexpr std::uint64_t kFaultyBlock = 4096;  ///< bytes of each block
inline constexpr std::uint64_t kFaultySlots = 32;    ///< per node

/// The thread that faulty nodes answer on.
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
  /// Waits for all that was posted.
  void settle() {
    std::promise<void> reached;
    post([&] { reached.set_value(); });
    reached.get_future().wait();
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
        memory_(kFaultySlots * kFaultyBlock) {
    replace_segment();
  }
  ~FaultyNode() override { answers_.settle(); }

  /// As a daemon that has ended. What it was asked before is still answered.
  void close() { closed_.store(true); }
  /// Puts that it stored.
  [[nodiscard]] std::size_t stored() const { return commits_.load(); }
  [[nodiscard]] std::size_t faults() const { return faults_.load(); }
  /// Answers the requests that were held back, long after their deadlines.
  void answer_late() {
    answers_.post([this] {
      for (auto& late : std::exchange(late_, {})) late();
    });
  }

  bool closed() const override { return closed_.load(); }
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
        commits_.fetch_add(1);
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
    if (closed()) return Error(Errc::kUnavailable, "it has ended");
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
    if (chance(12)) place.offset_bytes = random_.below(kFaultySlots) * kFaultyBlock;
    if (chance(12)) place.checksum[random_.below(2)] ^= 1U << random_.below(32);
    if (chance(12)) place.length_bytes += kFaultyBlock;
    if (chance(12)) place.offset_bytes = ~std::uint64_t{0} - kFaultyBlock;
    if (chance(12)) place.segment = SegmentId(place.segment.value() + 1000);
    if (chance(12)) {
      const std::uint64_t at = place.offset_bytes % memory_.size() + random_.below(kFaultyBlock);
      engine_.call([&] { memory_[at % memory_.size()] ^= std::byte{4}; });
    }
  }
  BlockSlot take_slot(const BlockWish& wish) {
    const std::uint64_t offset = next_slot_++ % kFaultySlots * kFaultyBlock;
    for (auto at = stored_.begin(); at != stored_.end();) {
      // Once in eight times it keeps the old block's entry.
      const bool there = at->second.offset_bytes == offset && !chance(8);
      at = there ? stored_.erase(at) : std::next(at);
    }
    const std::uint64_t id = next_id_++;
    reserved_[id] = {{wish.key.low, wish.key.high}, {id, segment_, offset, kFaultyBlock, {}}};
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
  std::atomic<std::size_t> commits_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace ho::client
