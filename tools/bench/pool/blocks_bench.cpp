#include "tools/bench/pool/blocks_bench.hpp"

#include <hyperoffload/blocks.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "tools/bench/pool/pool_bench.hpp"
#include "tools/bench/pool/profile.hpp"

namespace ho::bench {
namespace {

constexpr std::uint32_t kRounds = 101;
constexpr std::uint64_t kSmallBlock = 4 * kKiB;
/// Memory for this many times the blocks in flight, because requests end in any order.
constexpr std::size_t kSlots = 4;

using Key = std::array<std::uint64_t, 2>;

/// A store with memory for some blocks. Returns the memory at its end.
class Store {
 public:
  Store(ho_pool* pool, std::uint64_t block_bytes, std::size_t slots)
      : pool_(pool), block_bytes_(block_bytes), bytes_(block_bytes * slots) {}
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() {
    ho_blocks_close(blocks_);
    if (memory_ != nullptr) (void)ho_unregister(pool_, memory_);
    std::free(memory_);
  }

  [[nodiscard]] Result<void> open() {
    ho_blocks_options options{};
    options.struct_bytes = sizeof options;
    options.tenant = "bench";
    options.model = "bench";
    if (const auto status = ho_blocks_open(pool_, &options, &blocks_); status != HO_OK) {
      return pool_error(status, "opening a block store");
    }
    memory_ = static_cast<std::byte*>(std::aligned_alloc(4096, bytes_));
    HO_CHECK(memory_ != nullptr);
    std::memset(memory_, 1, bytes_);
    if (const auto status = ho_register(pool_, memory_, bytes_); status != HO_OK) {
      return pool_error(status, "registering memory");
    }
    return {};
  }

  /// Starts a request for the blocks first, first + 1, ..., in the slots from `slot` on.
  [[nodiscard]] Result<void> submit(ho_blocks_op op, std::uint64_t first, std::size_t slot,
                                    std::size_t count) {
    std::vector<Key> keys(count);
    std::vector<ho_block> items(count);
    for (std::size_t i = 0; i < count; ++i) {
      keys[i] = {first + i, 1};
      items[i].key = keys[i].data();
      items[i].key_bytes = sizeof(Key);
      if (op == HO_BLOCKS_GET || op == HO_BLOCKS_PUT) {
        items[i].data = memory_ + (slot + i) * block_bytes_;
        items[i].bytes = block_bytes_;
      }
    }
    std::uint64_t ticket = 0;
    const auto status = ho_blocks_submit(blocks_, op, items.data(), count, &ticket);
    if (status != HO_OK) return pool_error(status, "starting a request");
    return {};
  }

  /// Waits for some outcomes. @return how many; fails if any failed, except for expected misses.
  enum class Misses : std::uint8_t { kExpected, kFail };
  [[nodiscard]] Result<std::size_t> wait(Misses misses) {
    std::array<ho_block_done, 256> done;
    for (;;) {
      const std::size_t count = ho_blocks_drain(blocks_, done.data(), done.size());
      for (std::size_t i = 0; i < count; ++i) {
        if (done[i].status == HO_OK || misses == Misses::kExpected) continue;
        return Error(static_cast<Errc>(done[i].status),
                     "a block; is the store large enough? see --pool's blocks { ddr_bytes }");
      }
      if (count > 0) return count;
      pollfd ready{ho_blocks_event_fd(blocks_), POLLIN, 0};
      if (::poll(&ready, 1, 30'000) != 1) return Error(Errc::kDeadline, "no outcome");
    }
  }
  [[nodiscard]] Result<void> wait_for(std::size_t count, Misses misses) {
    while (count > 0) {
      const auto some = wait(misses);
      if (!some) return some.error();
      HO_CHECK(*some <= count);
      count -= *some;
    }
    return {};
  }

 private:
  ho_pool* pool_;
  const std::uint64_t block_bytes_;
  const std::uint64_t bytes_;
  ho_blocks* blocks_ = nullptr;
  std::byte* memory_ = nullptr;
};

/// Requests in flight. A new one starts whenever as many blocks as it has have ended.
class BlocksLoop final : public Loop {
 public:
  BlocksLoop(const BlocksBenchOptions& options, Store& store) : options_(options), store_(store) {}

  [[nodiscard]] std::vector<double> latencies_us() const override { return {}; }
  void forget_samples() override {}

  [[nodiscard]] Result<double> run(Duration time) override {
    const TimePoint start = clock_.now();
    std::uint64_t moved = 0;
    std::size_t flying = 0;
    const std::size_t most = std::size_t{options_.inflight} * options_.batch;
    while (clock_.now() - start < time || flying > 0) {
      while (flying + options_.batch <= most && clock_.now() - start < time) {
        if (auto begun = begin(); !begun) return begun.error();
        flying += options_.batch;
      }
      const auto ended = store_.wait(Store::Misses::kFail);
      if (!ended) return ended.error();
      flying -= *ended;
      moved += *ended * options_.block_bytes;
    }
    return static_cast<double>(moved) * 1e9 / static_cast<double>((clock_.now() - start).count());
  }

 private:
  [[nodiscard]] Result<void> begin() {
    const std::size_t slot = turn_ % (options_.inflight * kSlots) * options_.batch;
    const bool get = options_.direction == Direction::kGet;
    const std::uint64_t first =
        (get ? turn_ % options_.batches : turn_ + 1'000'000) * options_.batch;
    turn_ += 1;
    return store_.submit(get ? HO_BLOCKS_GET : HO_BLOCKS_PUT, first, slot, options_.batch);
  }

  const BlocksBenchOptions options_;
  Store& store_;
  const SteadyClock clock_;
  std::uint64_t turn_ = 0;
};

}  // namespace

Result<TransportBenchResult> bench_blocks(ho_pool* pool, const BlocksBenchOptions& options) {
  Store store(pool, options.block_bytes, std::size_t{options.inflight} * kSlots * options.batch);
  if (auto opened = store.open(); !opened) return opened.error();
  for (std::uint32_t i = 0; i < options.batches; ++i) {
    auto put = store.submit(HO_BLOCKS_PUT, std::uint64_t{i} * options.batch, 0, options.batch);
    if (put) put = store.wait_for(options.batch, Store::Misses::kFail);
    if (!put) return put.error();
  }
  LoopShape shape;
  shape.direction = options.direction;
  shape.size_bytes = options.block_bytes;
  shape.inflight = options.inflight * options.batch;
  shape.area_bytes = options.block_bytes * options.batch * options.batches;
  auto plain = make_pool_loop(pool, shape);
  if (!plain) return plain.error();
  std::vector<Limit> limits;
  limits.push_back({"plain transfers of the same pool", std::move(*plain)});
  BlocksLoop ours(options, store);
  return compare_in_turns(ours, std::move(limits), options.block_bytes, options.time,
                          SteadyClock());
}

Result<ExistsTimes> bench_exists(ho_pool* pool, std::uint32_t keys) {
  Store store(pool, kSmallBlock, keys);
  if (auto opened = store.open(); !opened) return opened.error();
  // Asks for keys of which every second one is stored, at most 1024 in a request to a node.
  const std::uint64_t begin = 1U << 20U;
  auto put = store.submit(HO_BLOCKS_PUT, begin + keys / 2, 0, keys / 2);
  if (put) put = store.wait_for(keys / 2, Store::Misses::kFail);
  if (!put) return put.error();
  const SteadyClock clock;
  std::vector<double> times;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const TimePoint start = clock.now();
    auto asked = store.submit(HO_BLOCKS_EXISTS, begin, 0, keys);
    if (asked) asked = store.wait_for(keys, Store::Misses::kExpected);
    if (!asked) return asked.error();
    times.push_back(static_cast<double>((clock.now() - start).count()) / 1e3);
  }
  return ExistsTimes{quantile(times, 0.5), quantile(times, 0.99)};
}

}  // namespace ho::bench
