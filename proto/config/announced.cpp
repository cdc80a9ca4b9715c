#include "proto/config/announced.hpp"

#include <arpa/inet.h>

#include "proto/control/control_address.hpp"

namespace ho {

bool is_wildcard(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return v4.s_addr == htonl(INADDR_ANY);
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

std::vector<std::string> announced_hosts(const DaemonConfig& config) {
  if (!config.tcp_listen) return {};
  if (!config.etcd || config.etcd->control_addresses.empty()) {
    const std::string& host = config.tcp_listen->host;
    return is_wildcard(host) ? std::vector<std::string>() : std::vector<std::string>{host};
  }
  std::vector<std::string> out;
  for (const std::string& text : config.etcd->control_addresses) {
    if (const auto address = ControlAddress::parse(text)) out.push_back(address->host);
  }
  return out;
}

}  // namespace ho
