#include "daemon/joining.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/membership/node_number.hpp"

namespace ho::daemon {

Result<std::unique_ptr<Membership>> join_pool(const DaemonConfig& config, const Member& self,
                                              const Clock& clock, Membership::Tell tell) {
  if (!config.etcd) return std::unique_ptr<Membership>();
  auto machine = machine_name(*config.etcd);
  if (!machine) return machine.error();
  Membership::Options options;
  options.etcd = *config.etcd;
  options.machine = std::move(*machine);
  options.self = self;
  const auto& advertised = config.etcd->control_addresses;
  if (!advertised.empty()) {
    auto& addresses = options.self.info.control_addresses;
    std::erase_if(addresses, [](const std::string& one) { return one.rfind("tcp:", 0) == 0; });
    addresses.insert(addresses.end(), advertised.begin(), advertised.end());
  }
  return std::make_unique<Membership>(std::move(options), clock, std::move(tell));
}

}  // namespace ho::daemon
