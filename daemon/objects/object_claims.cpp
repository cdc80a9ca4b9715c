#include "daemon/objects/object_claims.hpp"

namespace ho::daemon {

std::string ObjectClaims::name_of(const TenantSpec& tenant, std::uint64_t version) {
  return "object " + tenant_key(tenant) + '\0' + std::to_string(version);
}

std::string ObjectClaims::value_of(std::uint64_t run) { return "run " + std::to_string(run); }

Result<void> ObjectClaims::check_room(SessionId session) const {
  const auto found = of_.find(session);
  const std::size_t own = found == of_.end() ? 0 : found->second.size();
  if (count_ < kMax && own < kMax / kShare) return {};
  return Error(Errc::kExhausted, "the limit of " + std::to_string(kMax) +
                                     " reserved versions on a node, a quarter for one session");
}

void ObjectClaims::add(SessionId session, const std::string& name, const std::string& value) {
  if (of_[session].insert_or_assign(name, value).second) ++count_;
}

std::vector<ObjectClaims::Taken> ObjectClaims::take(SessionId session, const std::string& name) {
  const auto found = of_.find(session);
  if (found == of_.end()) return {};
  const auto at = found->second.find(name);
  if (at == found->second.end()) return {};
  std::vector<Taken> out{{at->first, at->second}};
  found->second.erase(at);
  if (found->second.empty()) of_.erase(found);
  --count_;
  return out;
}

std::vector<ObjectClaims::Taken> ObjectClaims::take_ended(const Pool& pool) {
  std::vector<Taken> out;
  std::erase_if(of_, [&](const auto& one) {
    if (pool.sessions().count(one.first) > 0) return false;
    for (const auto& [name, value] : one.second) out.push_back({name, value});
    count_ -= one.second.size();
    return true;
  });
  return out;
}

}  // namespace ho::daemon
