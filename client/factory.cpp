#include "client/factory.hpp"

#include "common/transport/local/local_transport.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ucx/ucx_transport.hpp"

namespace ho::client {
namespace {

/// A copy on this machine cannot hang: the deadline only guards against our own mistakes, and must
/// not strike when the job itself was stopped for a while.
constexpr Duration kLocalDeadline = std::chrono::seconds(60);

}  // namespace

Result<Engine::Driver> make_driver(const std::string& name, Duration op_deadline,
                                   const Clock& clock) {
  Engine::Driver driver;
  if (name == "local") {
    auto made = transport::make_local_transport({}, clock);
    if (!made) return made.error();
    driver.transport = std::move(made).value();
    // Copies are made one after the other: more in flight would only delay an urgent one.
    driver.port.piece_bytes = 1 * kMiB;
    driver.port.pieces_max = 2;
    driver.port.op_deadline = kLocalDeadline;
    return driver;
  }
  if (name == "ofi") {
    auto made = transport::make_ofi_transport({}, clock);
    if (!made) return made.error();
    driver.transport = std::move(made).value();
    driver.port.piece_bytes = 4 * kMiB;
    driver.port.pieces_max = 16;
    driver.port.op_deadline = op_deadline;
    return driver;
  }
  if (name == "ucx") {
    auto made = transport::make_ucx_transport({}, clock);
    if (!made) return made.error();
    driver.transport = std::move(made).value();
    driver.port.piece_bytes = 4 * kMiB;
    driver.port.pieces_max = 16;
    driver.port.op_deadline = op_deadline;
    return driver;
  }
  return Error(Errc::kUnsupported, "no driver named " + name + " in this build");
}

Result<void> check_driver(const std::string& name) {
  if (name != "ucx") return {};
  if (auto there = transport::check_ucx_device(); !there) return there;
  // In a container the host's devices can often be seen, but not opened.
  static const Result<void> usable = []() -> Result<void> {
    const SteadyClock clock;
    const auto made = transport::make_ucx_transport({}, clock);
    return made ? Result<void>() : made.error();
  }();
  return usable;
}

}  // namespace ho::client
