#include "tools/bench/transport/matrix_bench.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "client/pool/client_control.hpp"
#include "client/pool/renewer.hpp"
#include "common/base/units.hpp"
#include "common/transport/local/local_transport.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {
namespace {

using transport::RegionId;
using transport::Transport;

constexpr std::array<std::uint64_t, 5> kSizes = {4 * kKiB, 64 * kKiB, kMiB, 16 * kMiB, 64 * kMiB};
constexpr std::uint64_t kAreaBytesMax = 128 * kMiB;
constexpr std::uint64_t kAreaBytesMin = 16 * kMiB;
constexpr std::uint64_t kPieceBytes = 4 * kMiB;
constexpr std::uint64_t kFlightBytes = 64 * kMiB;
constexpr std::uint32_t kInflightMax = 16;
constexpr Duration kCellOpDeadline = std::chrono::seconds(30);
constexpr Duration kCellGrantTimeMax = std::chrono::seconds(60);

Result<std::unique_ptr<Transport>> make_transport(const std::string& driver, const std::string& tls,
                                                  const Clock& clock) {
  if (driver == "local") {
    transport::LocalOptions options;
    options.copy_threads = transport::usual_copy_threads();
    return transport::make_local_transport(options, clock);
  }
  if (driver == "tcp") {
    transport::TcpOptions options;
    options.tls_folder = tls;
    return transport::make_tcp_transport(options, clock);
  }
  if (driver == "ofi") {
    transport::OfiOptions options;
    options.allow_emulation = true;  // the daemon decides whether emulation is allowed
    return transport::make_ofi_transport(options, clock);
  }
  if (driver == "ucx") return transport::make_ucx_transport({}, clock);
  return Error(Errc::kUnsupported, "the matrix does not measure the driver " + driver);
}

/// Granted memory of one node, and host memory of the same size.
class NodeArea {
 public:
  NodeArea(ControlClient& control, const std::string& driver, const std::string& tls)
      : control_(control), driver_(driver), tls_(tls) {}
  NodeArea(const NodeArea&) = delete;
  NodeArea& operator=(const NodeArea&) = delete;
  ~NodeArea() {
    transport_.reset();
    lease_.reset();
    if (opened_) (void)control_.close_session(session_, clock_.now() + kCellOpDeadline);
  }

  [[nodiscard]] Result<void> open() {
    auto session = control_.open_session("bench matrix", clock_.now() + kCellOpDeadline, driver_);
    if (!session) return session.error();
    session_ = std::move(*session);
    opened_ = true;
    // Ignores a failed renewal: if the daemon has ended the session, the next transfer fails.
    lease_.emplace(session_.lease,
                   [this](TimePoint next) { (void)control_.renew_lease(session_, next); });
    auto segments = take();
    if (!segments) return segments.error();
    auto made = make_transport(driver_, tls_, clock_);
    if (!made) return made.error();
    transport_ = std::move(*made);
    client::ClientControl control(control_, "bench matrix", clock_);
    const transport::PeerAddress there{control_.hello().node,
                                       session_.address,
                                       {session_.id, session_.token},
                                       control.fence_of(session_)};
    const auto peer = transport_->connect(there, clock_.now() + kCellOpDeadline);
    if (!peer) return peer.error();
    for (GrantedSegment& segment : *segments) {
      transport::RegionGrant grant;
      grant.key = segment.key;
      grant.fd = std::move(segment.fd);
      grant.length_bytes = segment.length_bytes;
      auto region = transport_->attach(*peer, std::move(grant));
      if (!region) return region.error();
      regions_.push_back(*region);
    }
    bytes_ = regions_.size() * control_.hello().segment_bytes;
    host_.assign(bytes_, std::byte{1});
    const auto local = transport_->register_memory(host_);
    if (!local) return local.error();
    local_ = *local;
    return {};
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t piece_bytes() const {
    return std::min(kPieceBytes, control_.hello().segment_bytes);
  }
  [[nodiscard]] Transport& transport() { return *transport_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }

  /// `at`: offset in the area; stays within one segment.
  [[nodiscard]] Result<void> submit(Direction direction, OpId op, std::uint64_t at,
                                    std::uint64_t length) {
    const std::uint64_t segment = control_.hello().segment_bytes;
    const auto piece = std::span<std::byte>(host_).subspan(at, length);
    const RegionId region = regions_[at / segment];
    const TimePoint deadline = clock_.now() + kCellOpDeadline;
    return transport_->submit({direction, op, piece, local_, region, at % segment, deadline});
  }

 private:
  /// Takes as much memory as the node grants, up to kAreaBytesMax.
  [[nodiscard]] Result<std::vector<GrantedSegment>> take() {
    for (std::uint64_t bytes = kAreaBytesMax;; bytes /= 2) {
      GrantSpec spec;
      spec.bytes = bytes;
      spec.driver = driver_;
      auto granted = control_.grant(session_, spec, clock_.now() + kCellGrantTimeMax);
      const bool smaller = !granted && granted.error().code() == Errc::kExhausted;
      if (!smaller || bytes <= kAreaBytesMin) return granted;
    }
  }

  ControlClient& control_;
  const std::string driver_;
  const std::string tls_;
  const SteadyClock clock_;
  Session session_;
  bool opened_ = false;
  std::optional<client::Renewer> lease_;  ///< without renewals a long measurement loses its memory
  std::unique_ptr<Transport> transport_;
  std::vector<RegionId> regions_;
  std::vector<std::byte> host_;
  transport::LocalId local_;
  std::uint64_t bytes_ = 0;
};

struct Run {
  double bytes_per_s = 0;
  std::vector<double> latencies_us;
};

/// Transfers of one size, `inflight` at a time, each cut into pieces.
class SizeRun {
 public:
  SizeRun(NodeArea& area, Direction direction, std::uint64_t size_bytes, std::uint32_t inflight)
      : area_(area), direction_(direction), size_bytes_(size_bytes), slots_(inflight) {}

  [[nodiscard]] Result<Run> run(Duration time) {
    const Clock& clock = area_.clock();
    const TimePoint start = clock.now();
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) begin(slot);
    bool stopping = false;
    Run run;
    std::uint64_t moved_bytes = 0;
    while (busy_ > 0) {
      if (const auto pushed = push(); !pushed) return pushed.error();
      std::array<Completion, 64> done;
      const std::size_t count = area_.transport().poll(done);
      const TimePoint now = clock.now();
      for (std::size_t i = 0; i < count; ++i) {
        if (done[i].code != Errc::kOk) return Error(done[i].code, "a transfer failed");
        const auto slot = static_cast<std::uint32_t>(done[i].op.value());
        if (--slots_[slot].pieces > 0 || slots_[slot].left_bytes > 0) continue;
        run.latencies_us.push_back(static_cast<double>((now - slots_[slot].start).count()) / 1e3);
        moved_bytes += size_bytes_;
        busy_ -= 1;
        stopping = stopping || now - start >= time;
        if (!stopping) begin(slot);
      }
    }
    const auto took = static_cast<double>((clock.now() - start).count());
    run.bytes_per_s = static_cast<double>(moved_bytes) * 1e9 / took;
    return run;
  }

 private:
  struct Slot {
    TimePoint start;
    std::uint64_t at = 0;
    std::uint64_t left_bytes = 0;
    std::uint32_t pieces = 0;
  };

  void begin(std::uint32_t slot) {
    if (next_at_ + size_bytes_ > area_.bytes()) next_at_ = 0;
    slots_[slot] = Slot{area_.clock().now(), next_at_, size_bytes_, 0};
    next_at_ += size_bytes_;
    waiting_.push_back(slot);
    busy_ += 1;
  }

  /// Submits until the driver is busy.
  [[nodiscard]] Result<void> push() {
    while (!waiting_.empty()) {
      Slot& slot = slots_[waiting_.front()];
      const std::uint64_t length = std::min(slot.left_bytes, area_.piece_bytes());
      const auto submitted = area_.submit(direction_, OpId(waiting_.front()), slot.at, length);
      if (!submitted && submitted.error().code() == Errc::kBusy) return {};
      if (!submitted) return submitted.error();
      slot.at += length;
      slot.left_bytes -= length;
      slot.pieces += 1;
      if (slot.left_bytes == 0) waiting_.pop_front();
    }
    return {};
  }

  NodeArea& area_;
  const Direction direction_;
  const std::uint64_t size_bytes_;
  std::vector<Slot> slots_;
  std::deque<std::uint32_t> waiting_;
  std::size_t busy_ = 0;
  std::uint64_t next_at_ = 0;
};

Result<MatrixRow> measure_row(NodeArea& area, Direction direction, std::uint64_t size_bytes,
                              Duration time) {
  const auto alone = SizeRun(area, direction, size_bytes, 1).run(time / 2);
  if (!alone) return alone.error();
  const std::uint64_t room = std::min(kFlightBytes, area.bytes()) / size_bytes;
  const auto inflight =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(room, 1, kInflightMax));
  const auto many = SizeRun(area, direction, size_bytes, inflight).run(time / 2);
  if (!many) return many.error();
  return MatrixRow{direction,
                   size_bytes,
                   inflight,
                   many->bytes_per_s,
                   quantile(alone->latencies_us, 0.5),
                   quantile(alone->latencies_us, 0.99)};
}

}  // namespace

Result<std::vector<MatrixRow>> measure_node(ControlClient& control, const std::string& driver,
                                            const std::string& tls, Duration time) {
  NodeArea area(control, driver, tls);
  if (const auto opened = area.open(); !opened) return opened.error();
  std::vector<MatrixRow> rows;
  const Duration each = time / (2 * static_cast<std::int64_t>(kSizes.size()));
  for (const Direction direction : {Direction::kGet, Direction::kPut}) {
    for (const std::uint64_t size : kSizes) {
      if (size > area.bytes()) continue;
      const auto row = measure_row(area, direction, size, each);
      if (!row) return row.error();
      rows.push_back(*row);
    }
  }
  return rows;
}

}  // namespace ho::bench
