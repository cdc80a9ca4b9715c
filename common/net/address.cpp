#include "common/net/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <set>

#include "common/system/unique_fd.hpp"

namespace ho::net {
namespace {

/// Its address as text; empty: neither IPv4 nor IPv6, or one that is good on its own link only.
std::string numeric(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return {};
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

Result<SocketAddress> socket_address(const std::string& host, std::uint16_t port) {
  SocketAddress out;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    out.length = sizeof *v4;
    return out;
  }
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    out.length = sizeof *v6;
    return out;
  }
  return Error(Errc::kInvalidArgument, "\"" + host + "\" is not a numeric IP address");
}

Result<SocketAddress> parse_socket_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const Error bad(Errc::kInvalidArgument, "\"" + text + "\" is not ADDRESS:PORT");
  if (colon == std::string::npos || colon == 0) return bad;
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end) return bad;
  std::string host = text.substr(0, colon);
  const bool brackets = host.front() == '[' && host.back() == ']';
  if (brackets != (host.find(':') != std::string::npos)) return bad;
  if (brackets) host = host.substr(1, host.size() - 2);
  return socket_address(host, port);
}

std::string to_text(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> host{"?"};
  if (address.family() == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, host.data(), host.size());
    return "[" + std::string(host.data()) + "]:" + std::to_string(ntohs(v6->sin6_port));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  ::inet_ntop(AF_INET, &v4->sin_addr, host.data(), host.size());
  return std::string(host.data()) + ":" + std::to_string(ntohs(v4->sin_port));
}

Result<SocketAddress> local_address(int fd) {
  SocketAddress out;
  out.length = sizeof out.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&out.storage), &out.length) != 0) {
    return errno_error(errno, "getsockname");
  }
  return out;
}

Result<void> check_own_address(const std::string& host) {
  const auto where = socket_address(host, 0);
  if (!where) return where.error();
  const UniqueFd fd(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno_error(errno, host);
  if (::bind(fd.get(), where->get(), where->length) == 0) return {};
  return Error(Errc::kInvalidArgument, host + " is not an address of this machine");
}

Result<std::string> interface_address(const std::string& name) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return errno_error(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, ::freeifaddrs);
  std::set<std::string> names;
  std::string v6;
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    names.insert(one->ifa_name);
    if (one->ifa_name != name || one->ifa_addr == nullptr) continue;
    std::string text = numeric(one->ifa_addr);
    if (text.empty()) continue;
    if (one->ifa_addr->sa_family == AF_INET) return text;
    if (v6.empty()) v6 = std::move(text);
  }
  if (!v6.empty()) return v6;
  if (names.count(name) > 0) {
    return Error(Errc::kUnavailable, "the network interface \"" + name + "\" has no address");
  }
  std::string all;
  for (const std::string& one : names) all += (all.empty() ? "" : ", ") + one;
  return Error(Errc::kNotFound, "no network interface \"" + name + "\" here; there are " + all);
}

}  // namespace ho::net
