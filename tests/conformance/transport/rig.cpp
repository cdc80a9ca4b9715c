#include "tests/conformance/transport/rig.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "common/base/prng.hpp"
#include "common/transport/local/local_transport.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/sim_transport.hpp"
#include "tools/bench/target_process.hpp"

namespace ho::test {
namespace {

using bench::Segment;
using bench::TargetProcess;
using transport::RegionGrant;
using namespace std::chrono_literals;
using transport::Rights;
using transport::Transport;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Made once: the certificates of all rigs of this process.
Certificates& the_authority() {
  static Certificates authority;
  return authority;
}

/// local, ucx, ofi or tcp, with targets in forked processes.
class RealRig final : public Rig {
 public:
  /// `width`: rails of tcp and ofi, threads of local.
  enum class Tls : std::uint8_t { kNo, kYes };
  explicit RealRig(bench::Driver driver, std::uint32_t width = 1, Tls tls = Tls::kNo,
                   transport::UcxDevices ucx = {})
      : driver_(driver), width_(width), ucx_(std::move(ucx)) {
    if (tls == Tls::kYes) {
      Certificates& authority = the_authority();
      daemon_tls_ = authority.daemon();
      job_tls_ = authority.issue("trainer", tls::Role::kJob);
    }
    if (driver == bench::Driver::kOfi && !provider_.empty() && spares().empty()) {
      for (std::size_t i = 0; i < kSpares; ++i) {
        auto spare = TargetProcess::prepare();
        REQUIRE(spare.ok());
        spares().push_back(std::move(*spare));
      }
    }
  }

  [[nodiscard]] const Clock& clock() const override { return clock_; }

  [[nodiscard]] std::unique_ptr<Transport> make_initiator(std::uint32_t depth) override {
    if (driver_ == bench::Driver::kLocal) {
      transport::LocalOptions options;
      options.copy_threads = width_;
      if (depth > 0) options.depth_ops_max = depth;
      auto made = transport::make_local_transport(options, clock_);
      REQUIRE(made.ok());
      return std::move(*made);
    }
    if (driver_ == bench::Driver::kUcx) {
      transport::UcxOptions options;
      options.devices = ucx_;
      if (depth > 0) options.depth_ops_max = depth;
      auto made = transport::make_ucx_transport(options, clock_);
      if (!made) FAIL(made.error().message());
      return std::move(*made);
    }
    if (driver_ == bench::Driver::kTcp) {
      transport::TcpOptions options;
      options.tls_folder = job_tls_;
      if (depth > 0) options.depth_ops_max = depth;
      auto made = transport::make_tcp_transport(options, clock_);
      REQUIRE(made.ok());
      return std::move(*made);
    }
    transport::OfiOptions options;
    options.allow_emulation = provider_.empty();
    if (depth > 0) options.depth_ops_max = depth;
    auto made = transport::make_ofi_transport(options, clock_);
    REQUIRE(made.ok());
    return std::move(*made);
  }

  std::size_t add_target() override {
    std::unique_ptr<TargetProcess> process;
    if (spares().empty()) {
      auto made = TargetProcess::prepare();
      REQUIRE(made.ok());
      process = std::move(*made);
    } else {
      process = std::move(spares().back());
      spares().pop_back();
    }
    const auto begun = process->begin({driver_, width_, provider_, environment("HO_OFI_ADDRESS"),
                                       daemon_tls_, ucx_.allow_emulation});
    if (!begun) FAIL(begun.error().message());
    targets_.push_back(std::move(process));
    return targets_.size() - 1;
  }

  [[nodiscard]] transport::PeerAddress peer(std::size_t target) const override {
    return targets_.at(target)->peer();
  }

  [[nodiscard]] Exposed expose(std::size_t target, std::uint64_t length_bytes,
                               Rights rights) override {
    auto segment = Segment::create(length_bytes);
    REQUIRE(segment.ok());
    const auto exposed = targets_.at(target)->expose(**segment, rights);
    if (!exposed) FAIL(exposed.error().message());
    exposures_.push_back(exposed->id);
    segments_.push_back(std::move(*segment));
    return Exposed{target, segments_.back()->bytes(), segments_.size() - 1, rights, exposed->key};
  }

  [[nodiscard]] RegionGrant grant(const Exposed& exposed) override {
    RegionGrant grant;
    grant.key = exposed.key;
    grant.length_bytes = exposed.truth.size();
    grant.rights = exposed.rights;
    if (driver_ == bench::Driver::kLocal) grant.fd = segments_.at(exposed.handle)->duplicate();
    return grant;
  }

  [[nodiscard]] Truth revoke(const Exposed& exposed) override {
    const bool truncate = driver_ == bench::Driver::kLocal;
    const auto revoked =
        targets_.at(exposed.target)
            ->revoke(exposures_.at(exposed.handle),
                     truncate ? TargetProcess::Truncate::kYes : TargetProcess::Truncate::kNo);
    if (!revoked) FAIL(revoked.error().message());
    return truncate ? Truth::kGone : Truth::kKept;
  }

  void stop(std::size_t target) override { targets_.at(target)->signal(SIGSTOP); }
  void resume(std::size_t target) override { targets_.at(target)->signal(SIGCONT); }
  void kill(std::size_t target) override { targets_.at(target)->signal(SIGKILL); }
  [[nodiscard]] bool alive(std::size_t target) override { return targets_.at(target)->alive(); }
  [[nodiscard]] bool served_by_device() const override {
    const bool ucx = driver_ == bench::Driver::kUcx && !ucx_.allow_emulation;
    return ucx || provider_.starts_with("verbs");
  }
  void idle(Transport& /*initiator*/) override { std::this_thread::yield(); }

 private:
  /// Targets that were forked before the first initiator was made: a provider that is named may
  /// have a device open from then on, which no child could use. For all rigs of the process.
  static constexpr std::size_t kSpares = 48;
  static std::vector<std::unique_ptr<TargetProcess>>& spares() {
    static std::vector<std::unique_ptr<TargetProcess>> waiting;
    return waiting;
  }

  const std::string provider_ = environment("HO_OFI_PROVIDER");
  const bench::Driver driver_;
  const std::uint32_t width_;
  const transport::UcxDevices ucx_;
  std::string daemon_tls_;  ///< folders; empty: without TLS
  std::string job_tls_;
  SteadyClock clock_;
  std::vector<std::unique_ptr<TargetProcess>> targets_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<transport::ExposureId> exposures_;
};

/// sim: everything in this thread, time jumps from event to event.
class SimRig final : public Rig {
 public:
  [[nodiscard]] const Clock& clock() const override { return clock_; }

  [[nodiscard]] std::unique_ptr<Transport> make_initiator(std::uint32_t depth) override {
    SimLink link;
    if (depth > 0) link.depth_ops_max = depth;
    return std::make_unique<SimTransport>(fabric_, clock_, link, 1);
  }

  std::size_t add_target() override {
    fabric_.add_peer("sim-" + std::to_string(alive_.size()));
    alive_.push_back(true);
    return alive_.size() - 1;
  }

  [[nodiscard]] transport::PeerAddress peer(std::size_t target) const override {
    return {NodeId(1), address(target)};
  }

  [[nodiscard]] Exposed expose(std::size_t target, std::uint64_t length_bytes,
                               Rights rights) override {
    memories_.push_back(std::make_unique<std::vector<std::byte>>(length_bytes));
    const std::span<std::byte> memory(*memories_.back());
    const RegionGrant grant = fabric_.expose(address(target), memory, rights);
    return Exposed{target, memory, 0, rights, grant.key};
  }

  [[nodiscard]] RegionGrant grant(const Exposed& exposed) override {
    RegionGrant grant;
    grant.key = exposed.key;
    grant.length_bytes = exposed.truth.size();
    grant.rights = exposed.rights;
    return grant;
  }

  [[nodiscard]] Truth revoke(const Exposed& exposed) override {
    fabric_.revoke(exposed.key);
    return Truth::kKept;
  }

  void stop(std::size_t target) override { fabric_.stop_peer(address(target)); }
  void resume(std::size_t target) override { fabric_.resume_peer(address(target)); }
  void kill(std::size_t target) override {
    fabric_.kill_peer(address(target));
    alive_.at(target) = false;
  }
  [[nodiscard]] bool alive(std::size_t target) override { return alive_.at(target); }
  [[nodiscard]] bool served_by_device() const override { return false; }

  void idle(Transport& initiator) override {
    const auto next = dynamic_cast<SimTransport&>(initiator).next_event();
    if (next) {
      clock_.advance_to(*next);
    } else {
      clock_.advance(std::chrono::milliseconds(1));
    }
  }

 private:
  [[nodiscard]] static std::string address(std::size_t target) {
    return "sim-" + std::to_string(target);
  }

  SimClock clock_;
  SimFabric fabric_;
  std::vector<bool> alive_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memories_;
};

}  // namespace

std::vector<std::string> drivers(std::vector<std::string> all) {
  const char* const wanted = std::getenv("HO_TRANSPORT");
  // A case that is not about the wanted driver runs as ever.
  if (wanted != nullptr && std::count(all.begin(), all.end(), wanted) > 0) return {wanted};
  if (!transport::check_rdma_device()) std::erase(all, "ucx");
  if (std::count(all.begin(), all.end(), "tcp") > 0) {
    all.push_back("tcp-rails");
    all.push_back("tcp-tls");
  }
  if (std::count(all.begin(), all.end(), "local") > 0) all.push_back("local-threads");
  return all;
}

std::unique_ptr<Rig> make_rig(const std::string& driver) {
  if (driver == "local") return std::make_unique<RealRig>(bench::Driver::kLocal);
  if (driver == "local-threads") return std::make_unique<RealRig>(bench::Driver::kLocal, 3);
  if (driver == "ucx") return std::make_unique<RealRig>(bench::Driver::kUcx);
  if (driver == "ucx-tcp") {
    return std::make_unique<RealRig>(bench::Driver::kUcx, 1, RealRig::Tls::kNo,
                                     bench::ucx_over_tcp());
  }
  if (driver == "tcp") return std::make_unique<RealRig>(bench::Driver::kTcp);
  if (driver == "tcp-rails") return std::make_unique<RealRig>(bench::Driver::kTcp, 2);
  if (driver == "tcp-tls") {
    return std::make_unique<RealRig>(bench::Driver::kTcp, 2, RealRig::Tls::kYes);
  }
  if (driver == "ofi") return std::make_unique<RealRig>(bench::Driver::kOfi);
  REQUIRE(driver == "sim");
  return std::make_unique<SimRig>();
}

std::vector<Completion> collect(Rig& rig, Transport& initiator, std::size_t count, Duration limit) {
  std::vector<Completion> all;
  const TimePoint end = rig.clock().now() + limit;
  while (all.size() < count) {
    Completion some[64];
    const std::size_t got = initiator.poll(some);
    all.insert(all.end(), some, some + got);
    if (got > 0) continue;
    if (rig.clock().now() >= end) FAIL("only " << all.size() << " of " << count << " completed");
    rig.idle(initiator);
  }
  return all;
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  Prng prng(seed);
  std::size_t at = 0;
  for (; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = prng.next();
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
  for (; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(prng.next());
}

Bench::Bench(Rig& rig_in, std::uint64_t region_bytes, std::uint64_t memory_bytes,
             std::uint32_t depth, Rights rights)
    : rig(rig_in),
      target(rig.add_target()),
      exposed(rig.expose(target, region_bytes, rights)),
      initiator(rig.make_initiator(depth)),
      storage(memory_bytes),
      memory_view(storage) {
  const auto connected = initiator->connect(rig.peer(target), in(rig, std::chrono::seconds(20)));
  if (!connected) FAIL(connected.error().message());
  peer = *connected;
  auto attached = initiator->attach(peer, rig.grant(exposed));
  if (!attached) FAIL(attached.error().message());
  region = *attached;
  const auto registered = initiator->register_memory(memory_view);
  REQUIRE(registered.ok());
  local = *registered;
}

Bench::~Bench() = default;

Result<void> Bench::get(std::uint64_t op, const Span& span, Duration deadline) {
  return initiator->submit(
      transport::MemoryOp{transport::Direction::kGet, OpId(op),
                          memory_view.subspan(span.local_offset, span.length_bytes), local, region,
                          span.remote_offset, in(rig, deadline)});
}

Result<void> Bench::put(std::uint64_t op, const Span& span, Duration deadline) {
  return initiator->submit(
      transport::MemoryOp{transport::Direction::kPut, OpId(op),
                          memory_view.subspan(span.local_offset, span.length_bytes), local, region,
                          span.remote_offset, in(rig, deadline)});
}

void check_serves(Rig& rig, std::size_t target) {
  const Exposed exposed = rig.expose(target, kMiB, Rights::kReadWrite);
  fill(exposed.truth, 11);
  const auto initiator = rig.make_initiator(0);
  const auto peer = initiator->connect(rig.peer(target), in(rig, 20s));
  if (!peer) FAIL(peer.error().message());
  const auto region = initiator->attach(*peer, rig.grant(exposed));
  if (!region) FAIL(region.error().message());
  std::vector<std::byte> memory(kMiB);
  const auto local = initiator->register_memory(memory);
  REQUIRE(local.ok());
  REQUIRE(initiator
              ->submit(transport::MemoryOp{transport::Direction::kGet, OpId(1), memory, *local,
                                           *region, 0, in(rig, 5s)})
              .ok());
  REQUIRE(collect(rig, *initiator, 1)[0].code == Errc::kOk);
  REQUIRE(std::memcmp(memory.data(), exposed.truth.data(), kMiB) == 0);
  fill(memory, 12);
  REQUIRE(initiator
              ->submit(transport::MemoryOp{transport::Direction::kPut, OpId(2), memory, *local,
                                           *region, 0, in(rig, 5s)})
              .ok());
  REQUIRE(collect(rig, *initiator, 1)[0].code == Errc::kOk);
  REQUIRE(std::memcmp(memory.data(), exposed.truth.data(), kMiB) == 0);
}

}  // namespace ho::test
