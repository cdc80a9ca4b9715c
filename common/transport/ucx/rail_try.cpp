#include "common/transport/ucx/rail_try.hpp"

#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "common/base/clock.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/endpoint.hpp"

namespace ho::transport {
namespace {

/// How long a try may take. A link that is up answers in milliseconds once the kernel knows the
/// address, or in up to a second if devices are emulated. No transfer waits for it.
constexpr Duration kTime = std::chrono::seconds(3);

}  // namespace

Result<std::unique_ptr<UcxRailTry>> UcxRailTry::begin(UcxDevices device, std::string worker) {
  std::unique_ptr<UcxRailTry> made(new UcxRailTry(std::move(device), std::move(worker)));
  try {
    made->thread_ = std::thread([&one = *made] {
      try {
        one.outcome_ = one.reach();
      } catch (const std::exception&) {
        // Short enough for a string that allocates nothing.
        one.outcome_ = Error(Errc::kExhausted, "out of memory");
      }
      one.done_.store(true, std::memory_order_release);
    });
  } catch (const std::system_error& error) {
    return Error(Errc::kExhausted, std::string("a thread to try a rail: ") + error.what());
  }
  return made;
}

UcxRailTry::~UcxRailTry() {
  stop();
  if (thread_.joinable()) thread_.join();
}

Result<void> UcxRailTry::reach() const {
  auto context = UcxContext::create(device_, UcxSide::kInitiator);
  if (!context) return context.error();
  if (stop_.load(std::memory_order_relaxed)) return Error(Errc::kUnavailable, "ended");
  auto endpoint = UcxEndpoint::create(**context, worker_);
  if (!endpoint) return endpoint.error();
  (*endpoint)->start_connect();
  const SteadyClock clock;
  const TimePoint end = clock.now() + kTime;
  while (!(*endpoint)->ready()) {
    if ((*context)->progress() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (clock.now() >= end || stop_.load(std::memory_order_relaxed)) {
      return Error(Errc::kDeadline, "no answer from the target");
    }
  }
  if ((*endpoint)->error() == UCS_OK) return {};
  return Error(Errc::kUnavailable, ucx_error((*endpoint)->error(), "connecting").context());
}

}  // namespace ho::transport
