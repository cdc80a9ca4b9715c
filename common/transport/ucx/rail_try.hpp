#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/base/result.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::transport {

/// Finds out whether a worker of a target can be reached from a device, on a thread of its own and
/// with a context of its own: before an address is known to the kernel, an endpoint to it is not
/// made within a second, and the transport's owner has other rails and peers to serve. Once it is,
/// that takes some milliseconds.
///
/// Owner thread: the transport's. Destroying it ends the try and waits for its thread: for 1 s
/// where the kernel is looking for an address, for 2 s more where UCX is slow to close the
/// endpoint.
class UcxRailTry {
 public:
  /// @param device the one to try. @param worker as UcxWorker::address.
  /// @return kExhausted: there is no thread for it.
  [[nodiscard]] static Result<std::unique_ptr<UcxRailTry>> begin(UcxDevices device,
                                                                 std::string worker);
  UcxRailTry(const UcxRailTry&) = delete;
  UcxRailTry& operator=(const UcxRailTry&) = delete;
  ~UcxRailTry();

  /// Nobody wants its outcome any more. Does not wait.
  void stop() { stop_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  /// Once it is done. @return kUnavailable; kDeadline; why there is no context.
  [[nodiscard]] const Result<void>& outcome() const { return outcome_; }

 private:
  UcxRailTry(UcxDevices device, std::string worker)
      : device_(std::move(device)), worker_(std::move(worker)) {}
  [[nodiscard]] Result<void> reach() const;

  const UcxDevices device_;
  const std::string worker_;
  std::atomic<bool> stop_{false};
  Result<void> outcome_;  ///< the thread's, until done_
  std::atomic<bool> done_{false};
  std::thread thread_;  ///< last: it begins when all else is there
};

}  // namespace ho::transport
