#include "tools/bench/pool/pool_bench.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "tools/bench/pool/profile.hpp"

namespace ho::bench {
namespace {

/// Page-aligned and faulted in, as fast copies need it.
class Pages {
 public:
  explicit Pages(std::uint64_t bytes)
      : base_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes))), bytes_(bytes) {
    HO_CHECK(base_ != nullptr);
    std::memset(base_, 1, bytes);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { std::free(base_); }
  [[nodiscard]] std::byte* data() const { return base_; }
  [[nodiscard]] std::uint64_t size() const { return bytes_; }

 private:
  std::byte* base_;
  std::uint64_t bytes_;
};

/// Memory of host and pool. Returned at its end.
struct Memory {
  explicit Memory(ho_pool* used_pool, std::uint64_t bytes) : pool(used_pool), host(bytes) {}
  [[nodiscard]] Result<void> open() {
    ho_status status = ho_allocate(pool, host.size(), &allocation);
    if (status != HO_OK) return pool_error(status, "allocating pool memory");
    status = ho_register(pool, host.data(), host.size());
    if (status != HO_OK) return pool_error(status, "registering host memory");
    registered = true;
    return {};
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (registered) (void)ho_unregister(pool, host.data());
    if (allocation != nullptr) ho_free(pool, allocation);
  }
  ho_pool* pool;
  Pages host;
  ho_allocation* allocation = nullptr;
  bool registered = false;
};

/// Transfers in flight. Waits for them in the order of their start.
class PoolLoop final : public Loop {
 public:
  PoolLoop(const LoopShape& shape, Memory& memory) : shape_(shape), memory_(memory) {}

  [[nodiscard]] std::vector<double> latencies_us() const override { return latencies_us_; }
  void forget_samples() override { latencies_us_.clear(); }

  [[nodiscard]] Result<double> run(Duration time) override {
    const TimePoint start = clock_.now();
    std::uint64_t moved_bytes = 0;
    while (clock_.now() - start < time) {
      while (started_.size() < shape_.inflight) {
        if (const auto begun = begin(); !begun) return begun.error();
      }
      if (const auto ended = end(); !ended) return ended.error();
      moved_bytes += shape_.size_bytes;
    }
    for (; !started_.empty(); moved_bytes += shape_.size_bytes) {
      if (const auto ended = end(); !ended) return ended.error();
    }
    const auto took = static_cast<double>((clock_.now() - start).count());
    return static_cast<double>(moved_bytes) * 1e9 / took;
  }

 private:
  struct Started {
    std::uint64_t ticket = 0;
    TimePoint at;
  };

  [[nodiscard]] Result<void> begin() {
    if (at_ + shape_.size_bytes > shape_.area_bytes) at_ = 0;
    std::byte* host = memory_.host.data() + at_;
    Started started{0, clock_.now()};
    const ho_status status = shape_.direction == Direction::kGet
                                 ? ho_get(memory_.pool, memory_.allocation, at_, host,
                                          shape_.size_bytes, &started.ticket)
                                 : ho_put(memory_.pool, memory_.allocation, at_, host,
                                          shape_.size_bytes, &started.ticket);
    if (status != HO_OK) return pool_error(status, "starting a transfer");
    at_ += shape_.size_bytes;
    started_.push_back(started);
    return {};
  }

  [[nodiscard]] Result<void> end() {
    const Started first = started_.front();
    started_.pop_front();
    const ho_status status = ho_wait(memory_.pool, first.ticket);
    if (status != HO_OK) return pool_error(status, "a transfer");
    latencies_us_.push_back(static_cast<double>((clock_.now() - first.at).count()) / 1e3);
    return {};
  }

  const LoopShape shape_;
  Memory& memory_;
  const SteadyClock clock_;
  std::deque<Started> started_;
  std::vector<double> latencies_us_;
  std::uint64_t at_ = 0;
};

/// A PoolLoop with the memory that it moves.
class OwningPoolLoop final : public Loop {
 public:
  OwningPoolLoop(ho_pool* pool, const LoopShape& shape)
      : memory_(pool, shape.area_bytes), loop_(shape, memory_) {}
  [[nodiscard]] Result<void> open() { return memory_.open(); }
  [[nodiscard]] std::vector<double> latencies_us() const override { return loop_.latencies_us(); }
  void forget_samples() override { loop_.forget_samples(); }
  [[nodiscard]] Result<double> run(Duration time) override { return loop_.run(time); }

 private:
  Memory memory_;
  PoolLoop loop_;
};

}  // namespace

Result<std::unique_ptr<Loop>> make_pool_loop(ho_pool* pool, const LoopShape& shape) {
  auto made = std::make_unique<OwningPoolLoop>(pool, shape);
  if (auto opened = made->open(); !opened) return opened.error();
  return std::unique_ptr<Loop>(std::move(made));
}

Result<TransportBenchResult> bench_pool(ho_pool* pool, const LoopShape& wanted,
                                        std::vector<Limit> limits, Duration time) {
  LoopShape shape = wanted;
  if (shape.size_bytes == 0 || shape.inflight == 0) {
    return Error(Errc::kInvalidArgument, "size and inflight must not be 0");
  }
  shape.area_bytes = align_up(std::max(shape.area_bytes, shape.size_bytes * shape.inflight), 4096);
  Memory memory(pool, shape.area_bytes);
  if (auto opened = memory.open(); !opened) return opened.error();
  std::unique_ptr<Pages> other_side;
  if (limits.empty()) {
    other_side = std::make_unique<Pages>(shape.area_bytes);
    auto copy = make_copy_limit(shape, memory.host.data(), other_side->data());
    if (!copy) return copy.error();
    limits.push_back(std::move(*copy));
  }
  PoolLoop ours(shape, memory);
  return compare_in_turns(ours, std::move(limits), shape.size_bytes, time, SteadyClock());
}

}  // namespace ho::bench
