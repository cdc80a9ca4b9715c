#include "client/pool/paths/factory.hpp"

#include <algorithm>
#include <utility>

#include "client/accel/cuda/cuda_accel.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/net/address.hpp"
#include "common/transport/local/local_transport.hpp"

namespace ho::client {
namespace {

using MadeTransport = Result<std::unique_ptr<transport::Transport>>;

/// A copy on this machine cannot hang: the deadline only guards against our own mistakes, and must
/// not strike when the job itself was stopped for a while.
constexpr Duration kLocalDeadline = std::chrono::seconds(60);

Result<Engine::Driver> local_driver(const DriverOptions& asked, const Clock& clock) {
  transport::LocalOptions options;
  options.copy_threads =
      asked.local_threads > 0 ? asked.local_threads : transport::usual_copy_threads();
  auto made = transport::make_local_transport(options, clock);
  if (!made) return made.error();
  Engine::Driver driver;
  driver.transport = std::move(*made);
  // Copies are made one after the other: more in flight would only delay an urgent one.
  driver.port.piece_bytes = 1 * kMiB;
  driver.port.pieces_max = 2;
  driver.port.small_pieces_max = 2;
  driver.port.op_deadline = kLocalDeadline;
  return driver;
}

Result<Engine::Driver> network_driver(MadeTransport made, Duration op_deadline) {
  if (!made) return made.error();
  Engine::Driver driver;
  driver.transport = std::move(*made);
  driver.port.piece_bytes = 4 * kMiB;
  driver.port.pieces_max = 16;
  driver.port.op_deadline = op_deadline;
  return driver;
}

MadeTransport make_ofi(const DriverOptions& options, const Clock& clock) {
  transport::OfiOptions ofi = options.ofi;
  if (!options.ofi_interface.empty()) {
    auto address = net::interface_address(options.ofi_interface);
    if (!address) return address.error().at("ofi_interface");
    ofi.source_address = std::move(*address);
  }
  return transport::make_ofi_transport(ofi, clock);
}

MadeTransport make_tcp(const DriverOptions& options, const Clock& clock) {
  transport::TcpOptions tcp = options.tcp;
  if (!options.tcp_interface.empty()) {
    auto address = net::interface_address(options.tcp_interface);
    if (!address) return address.error().at("tcp_interface");
    tcp.source_address = std::move(*address);
  }
  return transport::make_tcp_transport(tcp, clock);
}

Result<void> check_interface(const std::string& name, const char* option) {
  if (name.empty()) return {};
  // One without an address may get it later.
  const auto address = net::interface_address(name);
  if (address || address.error().code() != Errc::kNotFound) return {};
  return Error(Errc::kInvalidArgument, std::string(option) + ": " + address.error().context());
}

}  // namespace

Result<void> check_options(const DriverOptions& options) {
  constexpr std::uint32_t kThreadsMax = transport::LocalOptions::kCopyThreadsMax;
  constexpr std::uint32_t kConnectionsMax = transport::TcpOptions::kConnectionsMax;
  static_assert(kConnectionsMax == transport::OfiOptions::kConnectionsMax);
  if (options.local_threads > kThreadsMax) {
    return Error(Errc::kInvalidArgument, "local_threads: " + std::to_string(options.local_threads) +
                                             " is not in 0 .. " + std::to_string(kThreadsMax));
  }
  if (const auto most = std::max(options.tcp.connections, options.ofi.connections);
      most > kConnectionsMax) {
    return Error(Errc::kInvalidArgument, "connections: " + std::to_string(most) +
                                             " is not in 0 .. " + std::to_string(kConnectionsMax));
  }
  if (auto ok = check_interface(options.tcp_interface, "tcp_interface"); !ok) return ok;
  return check_interface(options.ofi_interface, "ofi_interface");
}

Result<Engine::Driver> make_driver(const std::string& name, const DriverOptions& options,
                                   Duration op_deadline, const Clock& clock) {
  if (name == "local") return local_driver(options, clock);
  if (name == "tcp") return network_driver(make_tcp(options, clock), op_deadline);
  if (name == "ofi") return network_driver(make_ofi(options, clock), op_deadline);
  if (name == "ucx") {
    return network_driver(transport::make_ucx_transport(options.ucx, clock), op_deadline);
  }
  return Error(Errc::kUnsupported, "no driver named " + name + " in this build");
}

Result<std::unique_ptr<Accel>> make_accel(const DeviceOptions& options) {
  HO_CHECK(options.kind == DeviceOptions::Kind::kCuda);
  return make_cuda_accel(options);
}

}  // namespace ho::client
