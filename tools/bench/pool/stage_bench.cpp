#include "tools/bench/pool/stage_bench.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/prng.hpp"
#include "tools/bench/pool/profile.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {
namespace {

/// Scratch flash, pool memory beside it and host memory. Returned at the end.
class Pipeline {
 public:
  Pipeline(ho_pool* pool, const StageBenchOptions& options) : pool_(pool), options_(options) {}
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  ~Pipeline() {
    if (!host_.empty()) (void)ho_unregister(pool_, host_.data());
    if (memory_ != nullptr) ho_free(pool_, memory_);
    // Scratch flash: if freeing fails now, the end of the session frees it.
    if (ho_flash_free(pool_, flash_) != HO_OK) ho_flash_close(flash_);
  }

  [[nodiscard]] Result<void> open() {
    ho_status status = ho_flash_allocate(pool_, options_.total_bytes, HO_FLASH_SCRATCH, &flash_);
    if (status != HO_OK) return pool_error(status, "allocating flash");
    status = ho_allocate_beside(pool_, flash_, options_.total_bytes, &memory_);
    if (status != HO_OK) return pool_error(status, "allocating pool memory");
    host_.resize(options_.total_bytes);
    Prng random(1);
    for (std::size_t i = 0; i + 8 <= host_.size(); i += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(host_.data() + i, &word, 8);
    }
    wanted_ = host_;
    status = ho_register(pool_, host_.data(), host_.size());
    if (status != HO_OK) return pool_error(status, "registering host memory");
    std::uint64_t ticket = 0;
    status = ho_put(pool_, memory_, 0, host_.data(), host_.size(), &ticket);
    if (status == HO_OK) status = ho_wait(pool_, ticket);
    if (status != HO_OK) return pool_error(status, "put");
    status = ho_stage_out(pool_, flash_, 0, memory_, 0, options_.total_bytes, &ticket);
    if (status == HO_OK) status = ho_wait(pool_, ticket);
    if (status != HO_OK) return pool_error(status, "stage out");
    return {};
  }

  /// The halves of the path that a turn measures.
  struct Parts {
    bool stage = false;
    bool get = false;
  };

  /// @return bytes a second.
  [[nodiscard]] Result<double> turn(Parts parts) {
    const SteadyClock clock;
    const TimePoint start = clock.now();
    std::deque<std::uint64_t> stages;
    std::deque<std::uint64_t> gets;
    std::uint64_t asked = 0;
    std::uint64_t ready = 0;
    const std::uint64_t total = options_.total_bytes;
    while (ready < total) {
      while (parts.stage && asked < total && stages.size() < options_.inflight) {
        stages.emplace_back();
        const auto status =
            ho_stage_in(pool_, flash_, asked, memory_, asked, options_.chunk_bytes, &stages.back());
        if (status != HO_OK) return pool_error(status, "stage in");
        asked += options_.chunk_bytes;
      }
      if (parts.stage) {
        if (auto ended = wait(stages); !ended) return ended.error();
      }
      if (parts.get) {
        gets.emplace_back();
        const auto status =
            ho_get(pool_, memory_, ready, host_.data() + ready, options_.chunk_bytes, &gets.back());
        if (status != HO_OK) return pool_error(status, "get");
        if (gets.size() >= options_.inflight) {
          if (auto ended = wait(gets); !ended) return ended.error();
        }
      }
      ready += options_.chunk_bytes;
    }
    while (!gets.empty()) {
      if (auto ended = wait(gets); !ended) return ended.error();
    }
    const auto took = static_cast<double>((clock.now() - start).count());
    return static_cast<double>(total) * 1e9 / took;
  }

  void forget() { std::fill(host_.begin(), host_.end(), std::byte{}); }
  [[nodiscard]] bool complete() const { return host_ == wanted_; }

 private:
  [[nodiscard]] Result<void> wait(std::deque<std::uint64_t>& tickets) {
    const ho_status status = ho_wait(pool_, tickets.front());
    tickets.pop_front();
    if (status != HO_OK) return pool_error(status, "a transfer");
    return {};
  }

  ho_pool* pool_;
  const StageBenchOptions options_;
  ho_flash* flash_ = nullptr;
  ho_allocation* memory_ = nullptr;
  std::vector<std::byte> host_;
  std::vector<std::byte> wanted_;
};

}  // namespace

Result<StageBenchResult> bench_stage(ho_pool* pool, const StageBenchOptions& options) {
  HO_CHECK(options.chunk_bytes > 0 && options.total_bytes % options.chunk_bytes == 0);
  HO_CHECK(options.inflight > 0 && options.rounds > 0);
  Pipeline pipeline(pool, options);
  if (auto opened = pipeline.open(); !opened) return opened.error();
  constexpr Pipeline::Parts kStage{true, false};
  constexpr Pipeline::Parts kGet{false, true};
  constexpr Pipeline::Parts kBoth{true, true};
  std::vector<double> stages, gets, boths, ratios;
  if (auto warm = pipeline.turn(kBoth); !warm) return warm.error();
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    const auto stage = pipeline.turn(kStage);
    if (!stage) return stage.error();
    const auto get = pipeline.turn(kGet);
    if (!get) return get.error();
    pipeline.forget();
    const auto both = pipeline.turn(kBoth);
    if (!both) return both.error();
    if (!pipeline.complete()) return Error(Errc::kCorrupt, "other bytes than were staged out");
    stages.push_back(*stage);
    gets.push_back(*get);
    boths.push_back(*both);
    ratios.push_back(*both / std::min(*stage, *get));
  }
  StageBenchResult result;
  result.stage_bytes_per_s = quantile(stages, 0.5);
  result.get_bytes_per_s = quantile(gets, 0.5);
  result.both_bytes_per_s = quantile(boths, 0.5);
  result.ratio = quantile(ratios, 0.5);
  const Interval interval = median_interval(ratios);
  result.ratio_low = interval.low;
  result.ratio_high = interval.high;
  return result;
}

}  // namespace ho::bench
