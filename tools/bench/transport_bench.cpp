#include "tools/bench/transport_bench.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/units.hpp"
#include "common/transport/local/local_transport.hpp"
#include "common/transport/ofi/ofi_transport.hpp"

namespace ho::bench {
namespace {

using transport::GetOp;
using transport::LocalId;
using transport::PutOp;
using transport::RegionId;
using transport::Rights;
using transport::Transport;

constexpr std::size_t kSamplesMax = 1'000'000;
constexpr Duration kOpDeadline = std::chrono::seconds(10);

/// Host memory as a job has it: page-aligned, faulted in.
class HostArea {
 public:
  explicit HostArea(std::uint64_t bytes) : bytes_(bytes) {
    base_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  }
  HostArea(const HostArea&) = delete;
  HostArea& operator=(const HostArea&) = delete;
  ~HostArea() {
    if (base_ != MAP_FAILED) ::munmap(base_, bytes_);
  }
  [[nodiscard]] std::span<std::byte> bytes() const {
    if (base_ == MAP_FAILED) return {};
    return {static_cast<std::byte*>(base_), bytes_};
  }

 private:
  void* base_ = MAP_FAILED;
  std::uint64_t bytes_;
};

/// A driver as its user runs it: submit until `inflight`, poll.
class DriverLoop final : public TimedLoop {
 public:
  DriverLoop(const LoopShape& shape, Transport& transport, std::span<std::byte> memory)
      : shape_(shape), transport_(transport), memory_(memory), started_(shape.inflight) {
    samples_ns_.reserve(kSamplesMax);
    for (std::uint32_t i = 0; i < shape.inflight; ++i) free_.push_back(i);
  }

  void use(LocalId local, RegionId region) {
    local_ = local;
    region_ = region;
  }
  [[nodiscard]] std::vector<double> latencies_us() const override {
    std::vector<double> latencies;
    for (const std::uint32_t sample_ns : samples_ns_) latencies.push_back(sample_ns / 1e3);
    return latencies;
  }
  void forget_samples() override { samples_ns_.clear(); }

  [[nodiscard]] Result<double> run(Duration time) override {
    const TimePoint start = clock_.now();
    std::uint64_t moved_bytes = 0;
    Duration took{0};
    bool stopping = false;
    while (!stopping || free_.size() < shape_.inflight) {
      while (!stopping && !free_.empty()) {
        const auto submitted = submit(free_.back());
        if (!submitted && submitted.error().code() == Errc::kBusy) break;
        if (!submitted) return submitted.error();
        free_.pop_back();
      }
      std::array<Completion, 64> done;
      const std::size_t count = transport_.poll(done);
      const TimePoint now = clock_.now();
      for (std::size_t i = 0; i < count; ++i) {
        if (done[i].code != Errc::kOk) return Error(done[i].code, "a transfer failed");
        const auto slot = static_cast<std::uint32_t>(done[i].op.value());
        const auto latency = static_cast<std::uint32_t>((now - started_[slot]).count());
        if (samples_ns_.size() < kSamplesMax) samples_ns_.push_back(latency);
        free_.push_back(slot);
        if (!stopping) moved_bytes += shape_.size_bytes;
      }
      if (!stopping) took = now - start;
      stopping = stopping || took >= time;
    }
    return static_cast<double>(moved_bytes) * 1e9 / static_cast<double>(took.count());
  }

 private:
  [[nodiscard]] Result<void> submit(std::uint32_t slot) {
    const TimePoint now = clock_.now();
    started_[slot] = now;
    const std::span<std::byte> piece = memory_.subspan(at_, shape_.size_bytes);
    auto submitted =
        shape_.direction == Direction::kGet
            ? transport_.submit(GetOp{OpId(slot), piece, local_, region_, at_, now + kOpDeadline})
            : transport_.submit(PutOp{OpId(slot), piece, local_, region_, at_, now + kOpDeadline});
    if (submitted) {
      at_ += shape_.size_bytes;
      if (at_ + shape_.size_bytes > shape_.area_bytes) at_ = 0;
    }
    return submitted;
  }

  const LoopShape shape_;
  Transport& transport_;
  std::span<std::byte> memory_;
  const SteadyClock clock_;
  LocalId local_;
  RegionId region_;
  std::vector<TimePoint> started_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> samples_ns_;
  std::uint64_t at_ = 0;
};

Result<std::unique_ptr<Transport>> make_initiator(const TransportBenchOptions& options,
                                                  const Clock& clock) {
  if (options.driver == Driver::kLocal) return transport::make_local_transport({}, clock);
  return transport::make_ofi_transport({}, clock);
}

}  // namespace

Result<TransportBenchResult> bench_transport(const TransportBenchOptions& options) {
  LoopShape shape = options.shape;
  if (shape.size_bytes == 0 || shape.inflight == 0) {
    return Error(Errc::kInvalidArgument, "size and inflight must not be 0");
  }
  // Everything is in whole operations, and no operation in flight overlaps another.
  shape.area_bytes = std::max(shape.area_bytes, shape.size_bytes * shape.inflight);
  shape.area_bytes = align_up(shape.area_bytes, 4096);
  const SteadyClock clock;
  auto target = TargetProcess::start(options.driver);
  if (!target) return target.error();
  const bool ofi = options.driver == Driver::kOfi;

  std::vector<Limit> limits;
  std::vector<Comparison> absent;
  if (ofi) {
    auto plain = make_libfabric_limit(shape, transport::kOfiProvider);
    if (!plain) return plain.error();
    auto ucx = make_ucx_limit(shape);
    limits.push_back(std::move(*plain));
    if (ucx) {
      limits.push_back(std::move(*ucx));
    } else {
      absent.push_back(Comparison{"ucx-tcp loop", 0, 0, 0, 0, ucx.error().message()});
    }
  }

  auto segment = Segment::create(shape.area_bytes);
  if (!segment) return segment.error();
  const auto exposed = (*target)->expose(**segment, Rights::kReadWrite);
  if (!exposed) return exposed.error();
  const HostArea host(shape.area_bytes);
  if (host.bytes().empty()) return Error(Errc::kExhausted, "no memory to copy to and from");
  auto initiator = make_initiator(options, clock);
  if (!initiator) return initiator.error();
  const auto peer =
      (*initiator)->connect({NodeId(1), (*target)->address()}, clock.now() + kOpDeadline);
  if (!peer) return peer.error();
  transport::RegionGrant grant;
  grant.key = exposed->key;
  grant.length_bytes = shape.area_bytes;
  if (!ofi) grant.fd = (*segment)->duplicate();
  const auto region = (*initiator)->attach(*peer, std::move(grant));
  if (!region) return region.error();
  const auto local = (*initiator)->register_memory(host.bytes());
  if (!local) return local.error();
  if (!ofi) {
    auto copy = make_copy_limit(shape, host.bytes().data(), (*segment)->bytes().data());
    if (!copy) return copy.error();
    limits.push_back(std::move(*copy));
  }

  DriverLoop ours(shape, **initiator, host.bytes());
  ours.use(*local, *region);
  auto result = compare_in_turns(ours, std::move(limits), shape.size_bytes, options.time);
  if (!result) return result.error();
  result->beside.insert(result->beside.end(), absent.begin(), absent.end());
  return result;
}

}  // namespace ho::bench
