#include "tools/bench/transport/transport_bench.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "client/pool/client_control.hpp"
#include "common/base/units.hpp"
#include "common/transport/local/local_transport.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"
#include "proto/control/control_client.hpp"
#include "tools/bench/latencies.hpp"
#include "tools/bench/own_daemon.hpp"

namespace ho::bench {
namespace {

using transport::LocalId;
using transport::RegionId;
using transport::Transport;

constexpr Duration kOpDeadline = std::chrono::seconds(10);
constexpr Duration kGrantTimeMax = std::chrono::seconds(120);  // faulting it in takes 0.5 s/GiB

/// Pages of this process: memory as a job has it, or only reserved addresses.
class HostArea {
 public:
  enum class Pages : std::uint8_t { kNow, kLater };
  HostArea(std::uint64_t bytes, Pages pages) : bytes_(bytes) {
    const int populate = pages == Pages::kNow ? MAP_POPULATE : MAP_NORESERVE;
    base_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | populate,
                   -1, 0);
  }
  HostArea(HostArea&& other) noexcept
      : base_(std::exchange(other.base_, MAP_FAILED)), bytes_(other.bytes_) {}
  HostArea& operator=(HostArea&&) = delete;
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

/// Runs a driver as its user does: submits until `inflight`, polls.
class DriverLoop final : public Loop {
 public:
  DriverLoop(const LoopShape& shape, Transport& transport, std::span<std::byte> memory)
      : shape_(shape), transport_(transport), memory_(memory), latencies_(shape.inflight) {
    for (std::uint32_t i = 0; i < shape.inflight; ++i) free_.push_back(i);
  }

  /// Regions in the order of the area. Each holds `ops_per_region` operations, the last one fewer.
  void use(LocalId local, std::vector<RegionId> regions, std::uint64_t ops_per_region) {
    local_ = local;
    regions_ = std::move(regions);
    ops_per_region_ = ops_per_region;
  }
  [[nodiscard]] std::vector<double> latencies_us() const override { return latencies_.us(); }
  void forget_samples() override { latencies_.forget(); }

  [[nodiscard]] Result<double> run(Duration time) override {
    const TimePoint start = clock_.now();
    std::uint64_t moved_bytes = 0;
    TimePoint now = start;
    while (now - start < time || free_.size() < shape_.inflight) {
      while (now - start < time && !free_.empty() && may_submit()) {
        const auto submitted = submit(free_.back());
        if (!submitted && submitted.error().code() == Errc::kBusy) break;
        if (!submitted) return submitted.error();
        free_.pop_back();
      }
      if (shape_.pause > Duration{0} && free_.size() == shape_.inflight) {
        std::this_thread::sleep_until(not_before_);
      }
      std::array<Completion, 64> done;
      const std::size_t count = transport_.poll(done);
      now = clock_.now();
      for (std::size_t i = 0; i < count; ++i) {
        if (done[i].code != Errc::kOk) return Error(done[i].code, "a transfer failed");
        const auto slot = static_cast<std::uint32_t>(done[i].op.value());
        latencies_.end(slot, now);
        not_before_ = now + shape_.pause;
        free_.push_back(slot);
        moved_bytes += shape_.size_bytes;
      }
    }
    return static_cast<double>(moved_bytes) * 1e9 / static_cast<double>((now - start).count());
  }

 private:
  [[nodiscard]] bool may_submit() const {
    return shape_.pause == Duration{0} || clock_.now() >= not_before_;
  }
  [[nodiscard]] Result<void> submit(std::uint32_t slot) {
    const TimePoint now = clock_.now();
    latencies_.begin(slot, now);
    const std::span<std::byte> piece = memory_.subspan(at_ * shape_.size_bytes, shape_.size_bytes);
    const RegionId region = regions_[at_ / ops_per_region_];
    const std::uint64_t offset = at_ % ops_per_region_ * shape_.size_bytes;
    const TimePoint deadline = now + kOpDeadline;
    auto submitted =
        transport_.submit({shape_.direction, OpId(slot), piece, local_, region, offset, deadline});
    if (submitted && ++at_ == shape_.area_bytes / shape_.size_bytes) at_ = 0;
    return submitted;
  }

  const LoopShape shape_;
  Transport& transport_;
  std::span<std::byte> memory_;
  const SteadyClock clock_;
  LocalId local_;
  std::vector<RegionId> regions_;
  std::uint64_t ops_per_region_ = 1;
  Latencies latencies_;
  TimePoint not_before_{};
  std::vector<std::uint32_t> free_;
  std::uint64_t at_ = 0;  ///< the next operation, as its number in the area
};

Result<std::unique_ptr<Transport>> make_initiator(Driver driver, const Clock& clock) {
  transport::OfiOptions ofi;
  ofi.allow_emulation = true;
  switch (driver) {
    case Driver::kLocal: return transport::make_local_transport({}, clock);
    case Driver::kOfi: return transport::make_ofi_transport(ofi, clock);
    case Driver::kUcx: return transport::make_ucx_transport({}, clock);
    case Driver::kTcp: return transport::make_tcp_transport({}, clock);
  }
  return Error(Errc::kInvalidArgument, "no such driver");
}

std::string name_of(Driver driver) {
  switch (driver) {
    case Driver::kLocal: return "local";
    case Driver::kOfi: return "ofi";
    case Driver::kUcx: return "ucx";
    case Driver::kTcp: return "tcp";
  }
  return "";
}

/// A session on the daemon, with a grant of the area's size and its segments.
struct Held {
  std::unique_ptr<ControlClient> control;
  transport::PeerAddress target;
  std::vector<GrantedSegment> segments;
};

Result<Held> hold(const std::string& daemon, Driver driver, std::uint64_t bytes) {
  const SteadyClock clock;
  const std::string name = name_of(driver);
  ControlClient::Options options;
  options.address = daemon;
  auto control = ControlClient::connect(std::move(options), clock.now() + kOpDeadline);
  if (!control) return control.error();
  const auto session = (*control)->open_session("bench", clock.now() + kOpDeadline, name);
  if (!session) return session.error();
  GrantSpec spec;
  spec.bytes = bytes;
  spec.driver = name;
  auto granted = (*control)->grant(*session, spec, clock.now() + kGrantTimeMax);
  if (!granted) return granted.error();
  Held held{std::move(*control), {}, std::move(*granted)};
  client::ClientControl node(*held.control, "bench", clock);
  held.target = {held.control->hello().node,
                 session->address,
                 {session->id, session->token},
                 node.fence_of(*session)};
  return held;
}

/// Maps the granted segments one after the other, for the copy that local is compared with: the
/// same pages, so the same page sizes.
Result<HostArea> map_segments(const std::vector<GrantedSegment>& segments, std::uint64_t bytes) {
  HostArea area(bytes, HostArea::Pages::kLater);
  if (area.bytes().empty()) return Error(Errc::kExhausted, "no address space for the segments");
  std::uint64_t at = 0;
  for (const GrantedSegment& segment : segments) {
    if (::mmap(area.bytes().data() + at, segment.length_bytes, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_POPULATE | MAP_FIXED, segment.fd.get(), 0) == MAP_FAILED) {
      return errno_error(errno, "mapping a segment");
    }
    at += segment.length_bytes;
  }
  return area;
}

/// Connects, and attaches every segment. @return the regions, in order.
Result<std::vector<RegionId>> attach(Transport& initiator, Held& held) {
  const SteadyClock clock;
  const auto peer = initiator.connect(held.target, clock.now() + kOpDeadline);
  if (!peer) return peer.error();
  std::vector<RegionId> regions;
  for (GrantedSegment& segment : held.segments) {
    transport::RegionGrant grant;
    grant.key = segment.key;
    grant.length_bytes = segment.length_bytes;
    grant.fd = std::move(segment.fd);
    const auto region = initiator.attach(*peer, std::move(grant));
    if (!region) return region.error();
    regions.push_back(*region);
  }
  return regions;
}

}  // namespace

Result<Rivals> make_network_rivals(Driver driver, const LoopShape& shape) {
  Rivals rivals;
  if (driver == Driver::kLocal) return rivals;
  if (driver == Driver::kUcx) {
    if (const auto there = transport::check_rdma_device(); !there) return there.error();
    auto plain = make_ucx_limit(shape, "rc");
    if (!plain) return plain.error();
    rivals.limits.push_back(std::move(*plain));
    return rivals;
  }
  const auto provider = transport::libfabric_tcp();
  if (!provider) return provider.error();
  auto plain = make_libfabric_limit(shape, *provider, Waits::kPolling);
  if (!plain) return plain.error();
  rivals.limits.push_back(std::move(*plain));
  if (shape.pause > Duration{0}) {
    auto asleep = make_libfabric_limit(shape, *provider, Waits::kAsleep);
    if (!asleep) return asleep.error();
    rivals.limits.push_back(std::move(*asleep));
  }
  auto ucx = make_ucx_limit(shape, "tcp");
  if (ucx) {
    rivals.limits.push_back(std::move(*ucx));
  } else {
    Comparison absent;
    absent.name = "plain UCX loop (tcp)";
    absent.not_measured = ucx.error().message();
    rivals.absent.push_back(std::move(absent));
  }
  return rivals;
}

Result<TransportBenchResult> bench_transport(const TransportBenchOptions& options) {
  LoopShape shape = options.shape;
  if (shape.size_bytes == 0 || shape.inflight == 0 || shape.size_bytes > kSegmentBytesMax) {
    return Error(Errc::kInvalidArgument, "size must be 1 .. 1 GiB and inflight not 0");
  }
  // Rounds to whole operations, so that none in flight overlaps another.
  shape.area_bytes = std::max(shape.area_bytes, shape.size_bytes * shape.inflight);
  shape.area_bytes = align_up(shape.area_bytes, 4096);
  const bool local = options.driver == Driver::kLocal;
  OwnDaemon::Options daemon_options;
  daemon_options.segment_bytes =
      std::clamp(std::bit_ceil(shape.area_bytes), kSegmentBytesMin, kSegmentBytesMax);
  const std::uint64_t ops_per_segment = daemon_options.segment_bytes / shape.size_bytes;
  const std::uint64_t ops = shape.area_bytes / shape.size_bytes;
  daemon_options.ddr_bytes =
      (ops + ops_per_segment - 1) / ops_per_segment * daemon_options.segment_bytes;
  if (!local) daemon_options.network = name_of(options.driver);
  // Everything that forks comes first.
  auto rivals = make_network_rivals(options.driver, shape);
  if (!rivals) return rivals.error();
  const auto daemon = OwnDaemon::start(daemon_options);
  if (!daemon) return daemon.error();
  auto held = hold((*daemon)->address(), options.driver, daemon_options.ddr_bytes);
  if (!held) return held.error();
  const HostArea host(shape.area_bytes, HostArea::Pages::kNow);
  if (host.bytes().empty()) return Error(Errc::kExhausted, "no memory to copy to and from");
  std::optional<HostArea> other_side;
  if (local) {
    auto mapped = map_segments(held->segments, daemon_options.ddr_bytes);
    if (!mapped) return mapped.error();
    other_side.emplace(std::move(*mapped));
    auto copy = make_copy_limit(shape, host.bytes().data(), other_side->bytes().data());
    if (!copy) return copy.error();
    rivals->limits.push_back(std::move(*copy));
  }
  const SteadyClock clock;
  auto initiator = make_initiator(options.driver, clock);
  if (!initiator) return initiator.error();
  const auto memory = (*initiator)->register_memory(host.bytes());
  if (!memory) return memory.error();
  auto regions = attach(**initiator, *held);
  if (!regions) return regions.error();

  DriverLoop ours(shape, **initiator, host.bytes());
  ours.use(*memory, std::move(*regions), ops_per_segment);
  auto result =
      compare_in_turns(ours, std::move(rivals->limits), shape.size_bytes, options.time, clock);
  if (!result) return result.error();
  result->beside.insert(result->beside.end(), rivals->absent.begin(), rivals->absent.end());
  return result;
}

}  // namespace ho::bench
