#include "tools/bench/profile.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/units.hpp"

namespace ho::bench {
namespace {

constexpr std::uint64_t kLargeBytes = 4 * kMiB;
constexpr std::uint64_t kSmallBytes = 4 * kKiB;
constexpr std::size_t kInFlight = 4;
constexpr int kRuns = 9;

enum class Direction : std::uint8_t { kRead, kWrite };

/// ho_status mirrors Errc in meaning and order (hyperoffload.h).
Error pool_error(ho_status status, std::string_view what) {
  return Error(static_cast<Errc>(status), std::string(what) + ": " + ho_last_error());
}

template <typename Number>
Number median(std::vector<Number> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Pool memory and host memory of one size, given back at the end.
class Area {
 public:
  Area(ho_pool* pool, std::uint64_t bytes) : pool_(pool), host_(bytes) {}
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  ~Area() {
    if (registered_) (void)ho_unregister(pool_, host_.data());
    if (memory_ != nullptr) ho_free(pool_, memory_);
  }

  [[nodiscard]] Result<void> open() {
    std::memset(host_.data(), 1, host_.size());
    ho_status status = ho_allocate(pool_, host_.size(), &memory_);
    if (status != HO_OK) return pool_error(status, "allocating pool memory");
    status = ho_register(pool_, host_.data(), host_.size());
    if (status != HO_OK) return pool_error(status, "registering host memory");
    registered_ = true;
    return {};
  }

  [[nodiscard]] Result<std::uint64_t> start(Direction direction, std::uint64_t length_bytes) {
    if (at_ + length_bytes > host_.size()) at_ = 0;
    std::byte* host = host_.data() + at_;
    std::uint64_t ticket = 0;
    const ho_status status = direction == Direction::kRead
                                 ? ho_get(pool_, memory_, at_, host, length_bytes, &ticket)
                                 : ho_put(pool_, memory_, at_, host, length_bytes, &ticket);
    if (status != HO_OK) return pool_error(status, "starting a transfer");
    at_ += length_bytes;
    return ticket;
  }

  [[nodiscard]] Result<void> wait(std::uint64_t ticket) {
    const ho_status status = ho_wait(pool_, ticket);
    if (status != HO_OK) return pool_error(status, "a transfer");
    return {};
  }

 private:
  ho_pool* pool_;
  std::vector<std::byte> host_;
  ho_allocation* memory_ = nullptr;
  bool registered_ = false;
  std::uint64_t at_ = 0;
};

/// Keeps kInFlight large transfers going for about `time`. @return bytes per second.
Result<double> run_large(Area& area, Direction direction, Duration time, const Clock& clock) {
  std::vector<std::uint64_t> tickets;
  std::uint64_t moved_bytes = 0;
  const TimePoint start = clock.now();
  std::size_t next = 0;
  while (true) {
    while (tickets.size() - next < kInFlight) {
      const auto ticket = area.start(direction, kLargeBytes);
      if (!ticket) return ticket.error();
      tickets.push_back(*ticket);
    }
    const auto waited = area.wait(tickets[next++]);
    if (!waited) return waited.error();
    moved_bytes += kLargeBytes;
    if (clock.now() - start >= time) break;
  }
  const Duration took = clock.now() - start;
  for (; next < tickets.size(); ++next) {
    const auto waited = area.wait(tickets[next]);
    if (!waited) return waited.error();
  }
  return static_cast<double>(moved_bytes) * 1e9 / static_cast<double>(took.count());
}

Result<double> small_ns(Area& area, Direction direction, Duration time, const Clock& clock) {
  std::vector<double> each;
  const TimePoint end = clock.now() + time;
  while (each.size() < 16 || clock.now() < end) {
    const TimePoint start = clock.now();
    const auto ticket = area.start(direction, kSmallBytes);
    if (!ticket) return ticket.error();
    const auto waited = area.wait(*ticket);
    if (!waited) return waited.error();
    each.push_back(static_cast<double>((clock.now() - start).count()));
  }
  return median(std::move(each));
}

Result<Link> measure_link(Area& area, Direction direction, Duration time, const Clock& clock) {
  const auto warm = run_large(area, direction, time / 10, clock);
  if (!warm) return warm.error();
  std::vector<double> runs;
  for (int i = 0; i < kRuns; ++i) {
    const auto run = run_large(area, direction, time * 8 / (10 * kRuns), clock);
    if (!run) return run.error();
    runs.push_back(*run);
  }
  const double bytes_per_s = median(std::move(runs));
  const auto small = small_ns(area, direction, time / 10, clock);
  if (!small) return small.error();
  const double wire_ns = static_cast<double>(kSmallBytes) * 1e9 / bytes_per_s;
  return Link{static_cast<std::uint64_t>(bytes_per_s),
              static_cast<std::uint64_t>(std::max(0.0, *small - wire_ns))};
}

}  // namespace

Result<Hardware> measure_profile(ho_pool* pool, const ProfileOptions& options) {
  if (options.area_bytes < kInFlight * kLargeBytes) {
    return Error(Errc::kInvalidArgument, "area_bytes: at least 16 MiB");
  }
  const std::string_view transport = ho_pool_transport(pool);
  if (transport == "mixed") {
    return Error(Errc::kUnsupported,
                 "a pool of near and far nodes has two links: connect with one transport");
  }
  Area area(pool, options.area_bytes);
  const auto opened = area.open();
  if (!opened) return opened.error();
  const SteadyClock clock;
  const auto read = measure_link(area, Direction::kRead, options.time / 2, clock);
  if (!read) return read.error();
  const auto write = measure_link(area, Direction::kWrite, options.time / 2, clock);
  if (!write) return write.error();
  Hardware hardware;
  hardware.name = options.name;
  hardware.device_bytes = options.device_bytes;
  const TierSpec tier{options.capacity_bytes, *read, *write};
  if (transport == "local") {
    hardware.local_ddr = tier;
  } else {
    hardware.remote_ddr = tier;
  }
  return hardware;
}

}  // namespace ho::bench
