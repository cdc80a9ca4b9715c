#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"

namespace ho::bench {

enum class Direction : std::uint8_t { kGet, kPut };

/// What is moved, the same for a driver and for the limit it is held against.
struct LoopShape {
  Direction direction = Direction::kGet;
  std::uint64_t size_bytes = 1U << 20U;  ///< of one operation
  std::uint32_t inflight = 16;
  std::uint64_t area_bytes =
      64U << 20U;  ///< walked through on both sides; a multiple of size_bytes
  /// From the end of one operation to the next submission: the target falls asleep in it, and so
  /// does the initiator's thread where nothing is in flight. Then both are woken for the next one.
  Duration pause{0};
};

/// Something that moves bytes and can be run in short turns, so that two of them can be compared on
/// a machine whose speed changes. Owner thread: the maker's.
class Loop {
 public:
  virtual ~Loop() = default;
  /// Keeps operations in flight for `time`, then lets those end that are. @return bytes per second,
  /// of all of them and up to the end of the last: what is half moved when the time is up would be
  /// time for no bytes.
  [[nodiscard]] virtual Result<double> run(Duration time) = 0;
  /// Submit to completion, of the operations since the last forget_samples(); none where the loop
  /// does not look.
  [[nodiscard]] virtual std::vector<double> latencies_us() const { return {}; }
  virtual void forget_samples() {}
};

/// Names what limits a driver, with the loop that shows it.
struct Limit {
  std::string name;
  std::unique_ptr<Loop> loop;
};

/// The best same-size copy on one thread: glibc's memcpy or a plain loop of streaming stores,
/// whichever is faster here at this size.
[[nodiscard]] Result<Limit> make_copy_limit(const LoopShape& shape, std::byte* local,
                                            std::byte* remote);

/// How an initiator waits for what it has in flight.
enum class Waits : std::uint8_t { kPolling, kAsleep };

/// A plain libfabric program: one endpoint, `inflight` operations, delivery-complete puts; its
/// target polls for 50 us and then sleeps, as ours does. kPolling is what our initiators do for 5
/// ms; kAsleep waits for its completion queue's descriptor at once. Forks; call while the process
/// has one thread.
[[nodiscard]] Result<Limit> make_libfabric_limit(const LoopShape& shape,
                                                 const std::string& provider, Waits waits);

/// A plain UCX program in processes of its own; its target polls all the time. Forks; call while
/// the process has one thread.
/// @param transports as UCX names them: "tcp" or "rc".
/// @return kUnsupported where the program is not there, or does not start (no UCX, no device).
[[nodiscard]] Result<Limit> make_ucx_limit(const LoopShape& shape, const std::string& transports);

}  // namespace ho::bench
