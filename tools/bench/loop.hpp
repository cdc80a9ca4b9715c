#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/transport.hpp"

namespace ho::bench {

using transport::Direction;

/// The transfers to make, the same for a driver and for its limit.
struct LoopShape {
  Direction direction = Direction::kGet;
  std::uint64_t size_bytes = 1U << 20U;  ///< per operation
  std::uint32_t inflight = 16;
  std::uint64_t area_bytes =
      64U << 20U;  ///< walked through on both sides; a multiple of size_bytes
  /// From the end of one operation to the next submission. Meanwhile the target falls asleep, and
  /// so does the initiator's thread if nothing is in flight. The next operation then wakes both.
  Duration pause{0};
};

/// Moves bytes in short turns, so that two loops can be compared on a machine whose speed changes.
/// Owner thread: the one that made it.
class Loop {
 public:
  virtual ~Loop() = default;
  /// Keeps operations in flight for `time`, then waits for those in flight. @return bytes per
  /// second over all of them, until the last one ended: stopping at `time` would count the time of
  /// unfinished operations but not their bytes.
  [[nodiscard]] virtual Result<double> run(Duration time) = 0;
  /// From submission to completion, of the operations since the last forget_samples(). Empty if the
  /// loop does not measure them.
  [[nodiscard]] virtual std::vector<double> latencies_us() const { return {}; }
  virtual void forget_samples() {}
};

/// The limit of a driver, with the loop that measures it.
struct Limit {
  std::string name;
  std::unique_ptr<Loop> loop;
};

/// The best same-size copy on one thread: glibc's memcpy or a plain loop of streaming stores,
/// whichever is faster on this machine at this size.
[[nodiscard]] Result<Limit> make_copy_limit(const LoopShape& shape, std::byte* local,
                                            std::byte* remote);

/// How an initiator waits for operations in flight.
enum class Waits : std::uint8_t { kPolling, kAsleep };

/// A plain libfabric program: one endpoint, `inflight` operations, delivery-complete puts. Its
/// target polls for 50 us and then sleeps, as ours does. kPolling polls, as our initiators do for 5
/// ms; kAsleep waits for its completion queue's descriptor at once. Forks; call while the process
/// has one thread.
[[nodiscard]] Result<Limit> make_libfabric_limit(const LoopShape& shape,
                                                 const std::string& provider, Waits waits);

/// A plain UCX program in separate processes, whose target polls all the time. Forks; call while
/// the process has one thread.
/// @param transports as UCX names them: "tcp" or "rc".
/// @return kUnsupported if the program is missing or does not start (no UCX, no device).
[[nodiscard]] Result<Limit> make_ucx_limit(const LoopShape& shape, const std::string& transports);

}  // namespace ho::bench
