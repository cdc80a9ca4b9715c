#include "tools/bench/flash/flash_bench.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/prng.hpp"
#include "common/system/random.hpp"
#include "common/system/unique_fd.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/store/extent_store.hpp"
#include "tools/bench/flash/fio_run.hpp"
#include "tools/bench/leftover.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {

namespace {

constexpr std::size_t kPairs = 21;  // fewer where the time is too short for turns of kTurnMin
// Shorter turns would measure how a turn begins. The default of --seconds makes turns of half a
// second.
constexpr Duration kTurnMin = std::chrono::milliseconds(50);
/// The label of the extents of a measurement. A later measurement frees those that a killed one
/// left.
constexpr const char* kLabel = "hyperoffload bench flash";
constexpr Duration kTurnMax = std::chrono::seconds(2);

/// A file for the measurement. The destructor removes it.
class OwnFile {
 public:
  explicit OwnFile(std::string path) : path_(std::move(path)) {}
  Result<void> make_if_missing(std::uint64_t bytes) {
    const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.valid()) return errno == EEXIST ? Result<void>() : errno_error(errno, path_);
    made_.emplace(path_);
    // Writes all blocks instead of only allocating them: a file system marks allocated blocks as
    // unwritten, and the first write to each would then pay for a change in its journal.
    const std::vector<char> zeros(kMiB);
    for (std::uint64_t at = 0; at < bytes; at += zeros.size()) {
      const std::size_t count = std::min<std::uint64_t>(zeros.size(), bytes - at);
      if (::pwrite(file.get(), zeros.data(), count, static_cast<off_t>(at)) !=
          static_cast<ssize_t>(count)) {
        return errno_error(errno, path_);
      }
    }
    return ::fsync(file.get()) == 0 ? Result<void>() : errno_error(errno, path_);
  }

 private:
  std::string path_;
  std::optional<Leftover> made_;
};

double thread_cpu_s() {
  struct rusage usage {};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const struct timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Turn {
  double bytes_per_s = 0;
  double cpu_s_per_gb = 0;
};

Result<void> free_extent(flash::ExtentStore& store, flash::ExtentId extent) {
  if (auto accepted = store.submit(flash::FreeOp{OpId(0), extent}); !accepted) return accepted;
  flash::StoreCompletion done;
  while (store.poll(std::span(&done, 1)) == 0) store.wait(std::chrono::seconds(1));
  if (done.done.code != Errc::kOk) return Error(done.done.code, store.describe(done.fault));
  return {};
}

/// The store with one extent, read or written at random offsets.
class StoreLoop {
 public:
  StoreLoop(std::unique_ptr<flash::ExtentStore> store, flash::ExtentId extent,
            const FlashBenchOptions& options)
      : store_(std::move(store)),
        extent_(extent),
        options_(options),
        stride_(align_up(options.size_bytes, flash::kBlockBytes)),
        memory_(stride_ * options.inflight),
        started_(options.inflight),
        random_(17) {
    Prng bytes(5);
    for (std::size_t at = 0; at < memory_.span().size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = bytes.next();
      std::memcpy(memory_.data() + at, &word, sizeof(word));
    }
    static_cast<void>(store_->device().add_memory(memory_.span()));
    latencies_us_.reserve(1U << 20U);
  }

  /// Writes the whole extent once, so that reads have bytes and the file system has placed every
  /// block.
  Result<void> fill(std::uint64_t area_bytes) {
    const std::uint64_t piece = std::min<std::uint64_t>(flash::kStripeBytes, memory_.span().size());
    for (std::uint64_t at = 0; at < area_bytes; at += piece) {
      const auto bytes = memory_.span().first(std::min(piece, area_bytes - at));
      auto accepted =
          store_->submit(flash::TransferOp{OpId(0), StageDirection::kOut, extent_, at, bytes});
      if (!accepted) return accepted;
      flash::StoreCompletion done;
      while (store_->poll(std::span(&done, 1)) == 0) store_->wait(std::chrono::seconds(1));
      if (done.done.code != Errc::kOk) return Error(done.done.code, store_->describe(done.fault));
    }
    return {};
  }

  Result<Turn> run(Duration time) {
    const double cpu = thread_cpu_s();
    const TimePoint begin = clock_.now();
    const TimePoint end = begin + time;
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < options_.inflight; ++i) {
      if (auto accepted = submit(i, begin); !accepted) return accepted.error();
    }
    std::uint32_t open = options_.inflight;
    TimePoint now = begin;
    while (open > 0) {
      std::array<flash::StoreCompletion, 64> done;
      const std::size_t count = store_->poll(done);
      if (count == 0) {
        store_->wait(std::chrono::seconds(1));
        continue;
      }
      now = clock_.now();
      for (std::size_t i = 0; i < count; ++i) {
        const auto& one = done[i];
        if (one.done.code != Errc::kOk) return Error(one.done.code, store_->describe(one.fault));
        bytes += one.done.moved_bytes;
        const auto slot = static_cast<std::uint32_t>(one.done.op.value());
        latencies_us_.push_back(
            std::chrono::duration<double, std::micro>(now - started_[slot]).count());
        if (now >= end) {
          --open;
        } else if (auto accepted = submit(slot, now); !accepted) {
          return accepted.error();
        }
      }
    }
    const double seconds = std::chrono::duration<double>(now - begin).count();
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    return Turn{static_cast<double>(bytes) / seconds, (thread_cpu_s() - cpu) / gigabytes};
  }

  [[nodiscard]] const std::vector<double>& latencies_us() const { return latencies_us_; }
  void forget_latencies() { latencies_us_.clear(); }
  [[nodiscard]] flash::ExtentStore& store() { return *store_; }
  [[nodiscard]] std::uint64_t area_bytes() const { return options_.area_bytes; }

  /// Frees the extents, so that the path is as it was found.
  Result<void> end() {
    if (auto gone = free_extent(*store_, extent_); !gone) return gone;
    return store_->close();
  }

 private:
  Result<void> submit(std::uint32_t slot, TimePoint now) {
    started_[slot] = now;
    const std::uint64_t offsets = options_.area_bytes / options_.size_bytes;
    const std::uint64_t offset = random_.below(offsets) * options_.size_bytes;
    const auto memory = memory_.span().subspan(slot * stride_, options_.size_bytes);
    const auto direction =
        options_.op == FlashOp::kRead ? StageDirection::kIn : StageDirection::kOut;
    return store_->submit(flash::TransferOp{OpId(slot), direction, extent_, offset, memory});
  }

  std::unique_ptr<flash::ExtentStore> store_;
  flash::ExtentId extent_;
  FlashBenchOptions options_;
  std::uint64_t stride_;
  flash::AlignedMemory memory_;
  std::vector<TimePoint> started_;
  std::vector<double> latencies_us_;
  Prng random_;
  SteadyClock clock_;
};

Result<std::unique_ptr<StoreLoop>> open_loop(FlashBenchOptions options) {
  flash::UringOptions uring;
  uring.paths = {options.path};
  uring.depth_ops = std::max(64U, options.inflight + 8);
  auto device = flash::make_uring_device(uring);
  if (!device) return device.error();
  flash::ExtentStore::Options about;
  about.ops_max = options.inflight + 1;
  about.salt = random_u64();
  about.new_set[0] = std::byte{0xbe};
  flash::Findings findings;
  auto store = flash::ExtentStore::open(std::move(*device), about, findings);
  if (!store) return store.error();
  for (const flash::ExtentInfo& info : (*store)->extents()) {
    if (info.about.label != kLabel) {
      return Error(Errc::kConflict, options.path + ": holds extents; give a file of its own");
    }
    if (auto gone = free_extent(**store, info.id); !gone) return gone.error();
  }
  // An existing store may be smaller than the size asked for. Durable writes need free places
  // beside the blocks that they replace.
  const std::uint64_t room = (*store)->paths()[0].free_bytes;
  const std::uint64_t most = options.policy == flash::Policy::kDurable ? room / 2 : room;
  options.area_bytes = std::min(options.area_bytes, most / options.size_bytes * options.size_bytes);
  if (options.area_bytes == 0) {
    return Error(Errc::kInvalidArgument, options.path + ": has room for " + format_bytes(most) +
                                             ", less than one operation");
  }
  flash::ExtentSpec spec;
  spec.label = kLabel;
  spec.length_bytes = options.area_bytes;
  spec.policy = options.policy;
  auto extent = (*store)->create(spec);
  if (!extent) return extent.error();
  auto loop = std::make_unique<StoreLoop>(std::move(*store), *extent, options);
  if (auto filled = loop->fill(options.area_bytes); !filled) return filled.error();
  return loop;
}

/// Runs the alternating turns.
Result<FlashBenchResult> measure(StoreLoop& loop, const FlashBenchOptions& options) {
  const auto geometry = flash::plan_geometry(loop.store().device().paths()[0].size_bytes);
  HO_CHECK(geometry.ok());
  FioShape shape;
  shape.path = options.path;
  shape.rw = options.op == FlashOp::kRead ? "randread" : "randwrite";
  shape.size_bytes = options.size_bytes;
  shape.inflight = options.inflight;
  shape.offset_bytes = geometry->data_offset(0);
  shape.area_bytes = loop.area_bytes();
  const bool durable = options.op == FlashOp::kWrite && options.policy == flash::Policy::kDurable;
  shape.fdatasync_every = durable ? 1 : 0;
  // A durable write always takes other free blocks, so fio walks through the same blocks.
  if (durable) {
    shape.area_bytes =
        geometry->data_blocks * flash::kBlockBytes / options.size_bytes * options.size_bytes;
  }

  const Duration turn = std::clamp<Duration>(options.time / (2 * kPairs), kTurnMin, kTurnMax);
  const auto pairs = std::max<std::size_t>(1, static_cast<std::size_t>(options.time / (2 * turn)));
  if (auto warm = loop.run(kTurnMin); !warm) return warm.error();
  if (auto warm = run_fio(shape, kTurnMin); !warm) return warm.error();
  loop.forget_latencies();
  std::vector<double> speeds, cpus, fio_speeds, fio_cpus, ratios;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const bool own_first = pair % 2 == 0;
    auto own = own_first ? loop.run(turn) : Result<Turn>(Turn{});
    const auto fio = run_fio(shape, turn);
    if (!fio) return fio.error();
    if (!own_first) own = loop.run(turn);
    if (!own) return own.error();
    speeds.push_back(own->bytes_per_s);
    cpus.push_back(own->cpu_s_per_gb);
    fio_speeds.push_back(fio->bytes_per_s);
    fio_cpus.push_back(fio->cpu_s / (fio->bytes / 1e9));
    ratios.push_back(own->bytes_per_s / fio->bytes_per_s);
  }
  FlashBenchResult result;
  result.ours = {"flash store", quantile(speeds, 0.5), quantile(cpus, 0.5)};
  result.fio = {durable ? "fio io_uring O_DIRECT fdatasync" : "fio io_uring O_DIRECT",
                quantile(fio_speeds, 0.5), quantile(fio_cpus, 0.5)};
  result.p50_us = quantile(loop.latencies_us(), 0.5);
  result.p99_us = quantile(loop.latencies_us(), 0.99);
  result.pairs = pairs;
  result.ratio = quantile(ratios, 0.5);
  const Interval interval = median_interval(ratios);
  result.ratio_low = interval.low;
  result.ratio_high = interval.high;
  result.area_bytes = loop.area_bytes();
  result.notice = loop.store().device().caps().notice;
  return result;
}

}  // namespace

Result<FlashBenchResult> bench_flash(const FlashBenchOptions& options) {
  OwnFile file(options.path);
  auto made = file.make_if_missing(2 * options.area_bytes + 256 * kMiB);
  if (!made) return made.error();
  auto loop = open_loop(options);
  if (!loop) return loop.error();
  auto result = measure(**loop, options);
  if (!result) return result;
  if (auto ended = (*loop)->end(); !ended) return ended.error();
  return result;
}

}  // namespace ho::bench
