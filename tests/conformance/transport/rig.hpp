#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "common/transport/transport.hpp"

namespace ho::test {

/// Memory exposed by a target, with a view of its true bytes.
struct Exposed {
  std::size_t target = 0;
  std::span<std::byte> truth;
  std::uint64_t handle = 0;  ///< the rig's own
  transport::Rights rights = transport::Rights::kReadWrite;
  std::string key;
};

/// One driver with targets behind it: what the conformance suite runs against. Real drivers have
/// their targets in forked processes, sim in the same thread with a clock that jumps.
class Rig {
 public:
  virtual ~Rig() = default;
  [[nodiscard]] virtual const Clock& clock() const = 0;
  /// A new initiator. `depth` of 0: the driver's default.
  [[nodiscard]] virtual std::unique_ptr<transport::Transport> make_initiator(
      std::uint32_t depth) = 0;
  /// @return the target's index.
  virtual std::size_t add_target() = 0;
  /// How the target's one session is reached.
  [[nodiscard]] virtual transport::PeerAddress peer(std::size_t target) const = 0;
  [[nodiscard]] virtual Exposed expose(std::size_t target, std::uint64_t length_bytes,
                                       transport::Rights rights) = 0;
  /// A grant as it would have come over the control connection.
  [[nodiscard]] virtual transport::RegionGrant grant(const Exposed& exposed) = 0;
  /// The end of a grant. kept: exposed.truth may still be read.
  enum class Truth { kKept, kGone };
  [[nodiscard]] virtual Truth revoke(const Exposed& exposed) = 0;
  virtual void stop(std::size_t target) = 0;
  virtual void resume(std::size_t target) = 0;
  virtual void kill(std::size_t target) = 0;
  [[nodiscard]] virtual bool alive(std::size_t target) = 0;
  /// A device serves the target's memory, and needs nothing of its process for that. The tests'
  /// devices are emulated, and slow.
  [[nodiscard]] virtual bool served_by_device() const = 0;
  /// Lets a little time pass while nothing completes.
  virtual void idle(transport::Transport& initiator) = 0;
};

/// Those of `all` that a case can run against here: `ucx` needs an RDMA device; what runs against
/// `tcp` does so over several rails, and with TLS too. HO_TRANSPORT in the environment names the
/// only one that is wanted. HO_OFI_PROVIDER and HO_OFI_ADDRESS have targets of "ofi" listen by
/// another provider than TCP's and elsewhere than on the loopback interface.
[[nodiscard]] std::vector<std::string> drivers(std::vector<std::string> all);

/// "local", "local-threads" (copies shared by three), "tcp", "tcp-rails" (targets with two
/// addresses), "tcp-tls" (two addresses, encrypted), "ofi" (over TCP unless HO_OFI_PROVIDER says
/// otherwise), "ucx", "ucx-tcp" (what UCX emulates over TCP, for cases without faults) or "sim".
[[nodiscard]] std::unique_ptr<Rig> make_rig(const std::string& driver);

/// A deadline from now.
[[nodiscard]] inline TimePoint in(const Rig& rig, Duration duration) {
  return rig.clock().now() + duration;
}

/// Polls until `count` completions are there. Fails the test after `limit` on the rig's clock.
[[nodiscard]] std::vector<Completion> collect(Rig& rig, transport::Transport& initiator,
                                              std::size_t count,
                                              Duration limit = std::chrono::seconds(20));

/// Bytes that differ from place to place and from seed to seed.
void fill(std::span<std::byte> bytes, std::uint64_t seed);

/// An initiator connected to one exposed region, with registered memory of its own.
struct Bench {
  Bench(Rig& rig_in, std::uint64_t region_bytes, std::uint64_t memory_bytes,
        std::uint32_t depth = 0, transport::Rights rights = transport::Rights::kReadWrite);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  struct Span {
    std::uint64_t local_offset = 0;
    std::uint64_t remote_offset = 0;
    std::uint64_t length_bytes = 0;
  };
  /// deadline: from now; default: far.
  [[nodiscard]] Result<void> get(std::uint64_t op, const Span& span,
                                 Duration deadline = std::chrono::seconds(15));
  [[nodiscard]] Result<void> put(std::uint64_t op, const Span& span,
                                 Duration deadline = std::chrono::seconds(15));
  [[nodiscard]] std::span<std::byte> memory() { return memory_view; }

  Rig& rig;
  std::size_t target;
  Exposed exposed;
  std::unique_ptr<transport::Transport> initiator;
  std::vector<std::byte> storage;
  std::span<std::byte> memory_view;
  transport::PeerId peer;
  transport::RegionId region;
  transport::LocalId local;
};

/// One round trip each way through a fresh initiator: the target still serves.
void check_serves(Rig& rig, std::size_t target);

}  // namespace ho::test
