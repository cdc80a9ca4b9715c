#include "tools/bench/pool/profile.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/units.hpp"

namespace ho::bench {

Error pool_error(ho_status status, std::string_view what) {
  return Error(static_cast<Errc>(status), std::string(what) + ": " + ho_last_error());
}

Result<OpenPool> connect_pool(const Connection& to) {
  ho_connect_options options{};
  options.struct_bytes = sizeof options;
  options.pool = to.pool.c_str();
  options.name = to.name.c_str();
  options.transport = to.transport.c_str();
  options.tls = to.tls.c_str();
  ho_pool* pool = nullptr;
  const ho_status status = ho_connect(&options, &pool);
  if (status != HO_OK) return Error(static_cast<Errc>(status), ho_last_error());
  return OpenPool(pool, ho_disconnect);
}

namespace {

constexpr std::uint64_t kLargeBytes = 4 * kMiB;
constexpr std::uint64_t kSmallBytes = 4 * kKiB;
constexpr std::size_t kInFlight = 2;  ///< in each direction
constexpr int kRuns = 9;
constexpr std::uint64_t kLeastBytes = kMiB;  ///< smallest area; what is less is not worth a tier

enum class Direction : std::uint8_t { kRead, kWrite };

/// ho_status mirrors Errc in meaning and order (hyperoffload.h).
template <typename Number>
Number median(std::vector<Number> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Pool memory, and host memory or flash of the same size to move it from and to. Returned at the
/// end.
class Area {
 public:
  /// @param nodes  that the pool memory is taken from
  Area(ho_pool* pool, ho_nearness nodes, std::uint64_t bytes)
      : pool_(pool),
        nodes_(nodes),
        bytes_(bytes),
        large_bytes_(std::min(kLargeBytes, bytes / (2 * kInFlight) / kSmallBytes * kSmallBytes)) {}
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  ~Area() {
    if (registered_) (void)ho_unregister(pool_, host_.data());
    if (memory_ != nullptr) ho_free(pool_, memory_);
    // Scratch flash: if freeing fails now, the end of the session frees it.
    if (ho_flash_free(pool_, flash_) != HO_OK) ho_flash_close(flash_);
  }

  [[nodiscard]] Result<void> open() {
    host_.assign(bytes_, std::byte{1});
    ho_status status = ho_allocate_among(pool_, nodes_, bytes_, &memory_);
    if (status != HO_OK) return pool_error(status, "allocating pool memory");
    status = ho_register(pool_, host_.data(), host_.size());
    if (status != HO_OK) return pool_error(status, "registering host memory");
    registered_ = true;
    return {};
  }

  /// Flash in place of host memory. Writes all of it once, because unwritten blocks cannot be read.
  [[nodiscard]] Result<void> open_flash() {
    ho_status status = ho_flash_allocate(pool_, bytes_, HO_FLASH_SCRATCH, &flash_);
    if (status != HO_OK) return pool_error(status, "allocating flash");
    status = ho_allocate_beside(pool_, flash_, bytes_, &memory_);
    if (status != HO_OK) return pool_error(status, "allocating pool memory");
    std::uint64_t ticket = 0;
    status = ho_stage_out(pool_, flash_, 0, memory_, 0, bytes_, &ticket);
    if (status != HO_OK) return pool_error(status, "starting a transfer");
    return wait(ticket);
  }

  /// Bytes of a large transfer: kLargeBytes, or less where those in flight would overlap.
  [[nodiscard]] std::uint64_t large_bytes() const { return large_bytes_; }

  [[nodiscard]] Result<std::uint64_t> start(Direction direction, std::uint64_t length_bytes) {
    // Each direction has its own half, so that nothing is read while it is written.
    const bool read = direction == Direction::kRead;
    std::uint64_t& at = read ? read_at_ : write_at_;
    if (at + length_bytes > bytes_ / 2) at = 0;
    const std::uint64_t offset = at + (read ? 0 : bytes_ / 2);
    std::uint64_t ticket = 0;
    const ho_status status = flash_ != nullptr ? stage(direction, offset, length_bytes, &ticket)
                                               : copy(direction, offset, length_bytes, &ticket);
    if (status != HO_OK) return pool_error(status, "starting a transfer");
    at += length_bytes;
    return ticket;
  }

  [[nodiscard]] Result<bool> ended(std::uint64_t ticket) {
    int done = 0;
    const ho_status status = ho_test(pool_, ticket, &done);
    if (status != HO_OK) return pool_error(status, "a transfer");
    return done != 0;
  }

  [[nodiscard]] Result<void> wait(std::uint64_t ticket) {
    const ho_status status = ho_wait(pool_, ticket);
    if (status != HO_OK) return pool_error(status, "a transfer");
    return {};
  }

 private:
  [[nodiscard]] ho_status copy(Direction direction, std::uint64_t offset, std::uint64_t length,
                               std::uint64_t* ticket) {
    std::byte* const host = host_.data() + offset;
    return direction == Direction::kRead ? ho_get(pool_, memory_, offset, host, length, ticket)
                                         : ho_put(pool_, memory_, offset, host, length, ticket);
  }
  [[nodiscard]] ho_status stage(Direction direction, std::uint64_t offset, std::uint64_t length,
                                std::uint64_t* ticket) {
    return direction == Direction::kRead
               ? ho_stage_in(pool_, flash_, offset, memory_, offset, length, ticket)
               : ho_stage_out(pool_, flash_, offset, memory_, offset, length, ticket);
  }

  ho_pool* pool_;
  const ho_nearness nodes_;
  const std::uint64_t bytes_;
  const std::uint64_t large_bytes_;
  std::vector<std::byte> host_;
  ho_allocation* memory_ = nullptr;
  ho_flash* flash_ = nullptr;
  bool registered_ = false;
  std::uint64_t read_at_ = 0;
  std::uint64_t write_at_ = 0;
};

struct BothWays {
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
};

/// Keeps kInFlight large transfers in flight in each direction for about `time`.
class LargeRun {
 public:
  explicit LargeRun(Area& area) : area_(area) {}

  [[nodiscard]] Result<BothWays> run(Duration time, const Clock& clock) {
    for (Way* const way : {&read_, &write_}) {
      for (auto& ticket : way->tickets) {
        const auto started = area_.start(way->direction, area_.large_bytes());
        if (!started) return started.error();
        ticket = *started;
      }
    }
    const TimePoint start = clock.now();
    while (clock.now() - start < time) {
      for (Way* const way : {&read_, &write_}) {
        if (const auto moved = go_on(*way); !moved) return moved.error();
      }
    }
    const auto took = static_cast<double>((clock.now() - start).count());
    for (Way* const way : {&read_, &write_}) {
      for (const std::uint64_t ticket : way->tickets) {
        if (const auto waited = area_.wait(ticket); !waited) return waited.error();
      }
    }
    return BothWays{static_cast<double>(read_.moved_bytes) * 1e9 / took,
                    static_cast<double>(write_.moved_bytes) * 1e9 / took};
  }

 private:
  struct Way {
    Direction direction = Direction::kRead;
    std::array<std::uint64_t, kInFlight> tickets{};
    std::size_t oldest = 0;
    std::uint64_t moved_bytes = 0;
  };

  /// Waits for the oldest transfer of one direction and starts as many as have ended meanwhile, so
  /// that the slower direction does not hold up the faster one.
  [[nodiscard]] Result<void> go_on(Way& way) {
    bool ended = true;
    for (std::size_t i = 0; i < kInFlight && ended; ++i) {
      const auto waited = area_.wait(way.tickets[way.oldest]);
      if (!waited) return waited;
      way.moved_bytes += area_.large_bytes();
      const auto started = area_.start(way.direction, area_.large_bytes());
      if (!started) return started.error();
      way.tickets[way.oldest] = *started;
      way.oldest = (way.oldest + 1) % kInFlight;
      const auto next = area_.ended(way.tickets[way.oldest]);
      if (!next) return next.error();
      ended = *next;
    }
    return {};
  }

  Area& area_;
  Way read_{Direction::kRead, {}, 0, 0};
  Way write_{Direction::kWrite, {}, 0, 0};
};

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

Result<Link> link_of(Area& area, Direction direction, double bytes_per_s, Duration time,
                     const Clock& clock) {
  const auto small = small_ns(area, direction, time, clock);
  if (!small) return small.error();
  const double wire_ns = static_cast<double>(kSmallBytes) * 1e9 / bytes_per_s;
  return Link{std::max<std::uint64_t>(1, static_cast<std::uint64_t>(bytes_per_s)),
              static_cast<std::uint64_t>(std::max(0.0, *small - wire_ns))};
}

Result<TierSpec> measure_tier(Area& area, std::uint64_t capacity_bytes,
                              const ProfileOptions& options, const Clock& clock) {
  const auto warm = LargeRun(area).run(options.time / 10, clock);
  if (!warm) return warm.error();
  std::vector<double> reads;
  std::vector<double> writes;
  for (int i = 0; i < kRuns; ++i) {
    const auto run = LargeRun(area).run(options.time * 8 / (10 * kRuns), clock);
    if (!run) return run.error();
    reads.push_back(run->read_bytes_per_s);
    writes.push_back(run->write_bytes_per_s);
  }
  const Duration small_time = options.time / 20;
  const auto read = link_of(area, Direction::kRead, median(std::move(reads)), small_time, clock);
  if (!read) return read.error();
  const auto write = link_of(area, Direction::kWrite, median(std::move(writes)), small_time, clock);
  if (!write) return write.error();
  return TierSpec{capacity_bytes, *read, *write};
}

/// Half of what is free suffices, where that is less than the area: a measurement is a guest.
Result<TierSpec> measure_ddr(ho_pool* pool, ho_nearness nodes, const ho_pool_room& room,
                             std::uint64_t capacity_bytes, const ProfileOptions& options,
                             const Clock& clock) {
  Area area(pool, nodes, std::clamp(room.ddr_bytes / 2, kLeastBytes, options.area_bytes));
  if (const auto opened = area.open(); !opened) return opened.error();
  return measure_tier(area, capacity_bytes, options, clock);
}

/// Flash of one node, though only the sum over all nodes is known: half of that, or the largest
/// part of it, down to kLeastBytes, that some node has.
Result<std::unique_ptr<Area>> open_flash(ho_pool* pool, std::uint64_t free_bytes,
                                         const ProfileOptions& options) {
  std::uint64_t bytes = std::clamp(free_bytes / 2, kLeastBytes, options.area_bytes);
  for (;;) {
    auto area = std::make_unique<Area>(pool, HO_ALL_NODES, bytes);
    const auto opened = area->open_flash();
    if (opened) return area;
    if (opened.error().code() != Errc::kExhausted || bytes == kLeastBytes) return opened.error();
    bytes = std::max(bytes / 2, kLeastBytes);
  }
}

Result<ho_pool_room> room_of(ho_pool* pool, ho_nearness nodes) {
  ho_pool_room room{};
  room.struct_bytes = sizeof room;
  const ho_status status = ho_pool_get_room(pool, nodes, &room);
  if (status != HO_OK) return pool_error(status, "asking the pool's nodes");
  return room;
}

}  // namespace

Duration profile_time(double limit_bytes_per_s) {
  constexpr Duration kLeast = std::chrono::milliseconds(500);
  if (limit_bytes_per_s <= 0) return kLeast;
  return std::max(
      kLeast, Duration(static_cast<Duration::rep>(100.0 * kLargeBytes * 1e9 / limit_bytes_per_s)));
}

Result<Hardware> measure_profile(ho_pool* pool, const ProfileOptions& options) {
  if (options.area_bytes < kLeastBytes) {
    return Error(Errc::kInvalidArgument, "area_bytes: at least 1 MiB");
  }
  const SteadyClock clock;
  Hardware hardware;
  hardware.name = options.name;
  hardware.device_bytes = options.device_bytes;
  const auto near = room_of(pool, HO_NEAR_NODES);
  if (!near) return near.error();
  const auto far = room_of(pool, HO_FAR_NODES);
  if (!far) return far.error();
  // A node that is full or being drained has nothing to plan with.
  const bool use_far = far->ddr_bytes >= kLeastBytes || near->nodes == 0;
  const bool both = near->ddr_bytes >= kLeastBytes && use_far;
  if (both || !use_far) {
    std::uint64_t capacity = options.capacity_bytes;
    if (capacity == 0 || (both && capacity > near->ddr_bytes)) capacity = near->ddr_bytes;
    const auto tier = measure_ddr(pool, HO_NEAR_NODES, *near, capacity, options, clock);
    if (!tier) return tier.error();
    hardware.local_ddr = *tier;
  }
  if (use_far) {
    const std::uint64_t capacity =
        options.capacity_bytes > 0 ? options.capacity_bytes : far->ddr_bytes;
    const auto tier = measure_ddr(pool, HO_FAR_NODES, *far, capacity, options, clock);
    if (!tier) return tier.error();
    hardware.remote_ddr = *tier;
  }
  const std::uint64_t flash_bytes = near->flash_bytes + far->flash_bytes;
  if (!options.flash || flash_bytes < kLeastBytes) return hardware;
  const auto flash = open_flash(pool, flash_bytes, options);
  if (!flash && options.flash_left_out) {
    options.flash_left_out(flash.error());
    return hardware;
  }
  if (!flash) return flash.error();
  const auto tier = measure_tier(**flash, flash_bytes, options, clock);
  if (!tier) return tier.error();
  hardware.flash = *tier;
  return hardware;
}

}  // namespace ho::bench
