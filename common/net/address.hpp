#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "common/base/result.hpp"

namespace ho::net {

/// A numeric IP address and a port, as the kernel has them.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
};

/// "10.0.0.1:7711", "[fe80::1]:7711". @return kInvalidArgument.
[[nodiscard]] Result<SocketAddress> parse_socket_address(const std::string& text);
/// @param host numeric, without brackets. @return kInvalidArgument.
[[nodiscard]] Result<SocketAddress> socket_address(const std::string& host, std::uint16_t port);
/// The same text back.
[[nodiscard]] std::string to_text(const SocketAddress& address);
/// Where a socket is bound. @return kIo.
[[nodiscard]] Result<SocketAddress> local_address(int fd);

/// Whether something may listen at a numeric address here. @return kInvalidArgument.
[[nodiscard]] Result<void> check_own_address(const std::string& host);

/// The address that a network interface of this machine is reached by: its first IPv4 one, else
/// IPv6 beyond its link. @return kNotFound, with the interfaces there are; kUnavailable: it has
/// none.
[[nodiscard]] Result<std::string> interface_address(const std::string& name);

}  // namespace ho::net
