#include "daemon/joining.hpp"

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
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

void offer_name_claims(Service& service, const std::unique_ptr<Membership>& membership,
                       asio::io_context& io) {
  Service::NameClaims claims;
  claims.claim = [&](const std::string& name, const std::string& value,
                     const Service::NameClaims::Answer& answer) {
    if (!membership) return answer(Error(Errc::kCanceled, "the daemon ends"));
    membership->claim({name, value}, [&io, answer](const Result<void>& claimed) {
      asio::post(io, [answer, claimed] { answer(claimed); });
    });
  };
  claims.unclaim = [&](const std::string& name, const std::string& value) {
    if (membership) membership->unclaim({name, value});
  };
  service.set_name_claims(std::move(claims));
}

}  // namespace ho::daemon
