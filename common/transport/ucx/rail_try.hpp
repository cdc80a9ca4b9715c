#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/base/result.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::transport {

/// Finds out whether a device can reach a worker of a target, on a thread and with a context of its
/// own. Making an endpoint takes more than a second until the kernel knows the address (some
/// milliseconds afterwards), and the transport's owner has other rails and peers to serve.
///
/// Owner thread: the transport's. The destructor ends the try and waits for its thread: 1 s if the
/// kernel is resolving an address, 2 s more if UCX is slow to close the endpoint.
class UcxRailTry {
 public:
  /// @param device the device to try. @param worker bytes of its address.
  /// @return kExhausted: the system has no thread for it.
  [[nodiscard]] static Result<std::unique_ptr<UcxRailTry>> begin(UcxDevices device,
                                                                 std::string worker);
  UcxRailTry(const UcxRailTry&) = delete;
  UcxRailTry& operator=(const UcxRailTry&) = delete;
  ~UcxRailTry();

  /// Abandons the try: its outcome is not needed. Does not wait.
  void stop() { stop_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  /// How the try ended, once it is done. @return kUnavailable; kDeadline; as UcxContext::create().
  [[nodiscard]] const Result<void>& outcome() const { return outcome_; }

 private:
  UcxRailTry(UcxDevices device, std::string worker)
      : device_(std::move(device)), worker_(std::move(worker)) {}
  [[nodiscard]] Result<void> reach() const;

  const UcxDevices device_;
  const std::string worker_;
  std::atomic<bool> stop_{false};
  Result<void> outcome_;  ///< written by the thread until done_
  std::atomic<bool> done_{false};
  std::thread thread_;  ///< last: it starts when all other members exist
};

}  // namespace ho::transport
