#include "tools/doctor/listening.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "common/system/unique_fd.hpp"

namespace ho::doctor {

namespace {

std::string text_of(int error) { return std::generic_category().message(error); }

bool daemon_answers(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd.valid() &&
         ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

Check control_socket(const std::string& path) {
  if (daemon_answers(path)) return {"control socket", State::kOk, path + ": a daemon answers", ""};
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (::access(folder.c_str(), W_OK) == 0) {
    return {"control socket", State::kOk, path + ": no daemon; its folder can be written", ""};
  }
  if (errno == ENOENT && folder.rfind("/run/", 0) == 0) {  // empty after each boot
    return {"control socket", State::kOk,
            folder + ": not there; the unit makes it (RuntimeDirectory=)", ""};
  }
  return {"control socket", State::kFailed, folder + ": " + text_of(errno),
          "The daemon makes its socket there. Make the folder for the daemon's user; the unit does "
          "so by RuntimeDirectory="};
}

/// 0, or why nothing can listen there.
int listen_fault(const TcpListen& address, std::string& unknown) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int answer = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (answer != 0) {
    unknown = ::gai_strerror(answer);
    return EADDRNOTAVAIL;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  const UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd.valid()) return errno;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0) return errno;
  return ::listen(fd.get(), 1) == 0 ? 0 : errno;
}

/// @param field  of the configuration, which names the check.
Check tcp_address(const char* field, const TcpListen& address, bool daemon_runs) {
  const std::string name = address.host + ":" + address.port;
  std::string unknown;
  const int fault = listen_fault(address, unknown);
  if (fault == 0) return {field, State::kOk, name + ": free", ""};
  if (fault == EADDRINUSE && daemon_runs) {
    return {field, State::kOk, name + ": in use, and a daemon runs", ""};
  }
  return {field, State::kFailed, name + ": " + (unknown.empty() ? text_of(fault) : unknown),
          fault == EADDRINUSE
              ? "Another program listens there (`ss -ltnp`). End it, or choose another port"
              : "Choose an address of this machine (`ip address`) and a port above 1023"};
}

}  // namespace

Needs needs_of(const DaemonConfig& config) {
  Needs needs;
  needs.ddr_bytes = config.ddr_bytes;
  needs.segments = config.ddr_bytes / config.segment_bytes;
  needs.flash = !config.flash.empty();
  const auto devices = [](const OfiSettings& rail) {
    return rail.provider.text.rfind("verbs", 0) == 0;
  };
  needs.rdma = (config.ucx && !config.ucx->allow_emulation) ||
               std::any_of(config.ofi.begin(), config.ofi.end(), devices);
  return needs;
}

std::vector<Check> check_listening(const DaemonConfig& config) {
  std::vector<Check> checks{control_socket(config.unix_socket)};
  const bool daemon_runs = daemon_answers(config.unix_socket);
  if (config.tcp_listen) {
    checks.push_back(tcp_address("tcp_listen", *config.tcp_listen, daemon_runs));
  }
  if (config.http_listen) {
    checks.push_back(tcp_address("http_listen", *config.http_listen, daemon_runs));
  }
  for (const TcpSettings& rail : config.tcp) {
    if (rail.port == 0 || rail.address.text.empty()) continue;  // the system chooses
    const TcpListen address{rail.address.text, std::to_string(rail.port)};
    checks.push_back(tcp_address("tcp", address, daemon_runs));
  }
  return checks;
}

}  // namespace ho::doctor
