#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/address.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/pool/tenant.hpp"

namespace ho::daemon {

/// The versions of objects that sessions of this node have reserved in the whole pool. Knows names
/// alone: etcd has them. Pure. Owner: the control thread.
class ObjectClaims {
 public:
  static constexpr std::size_t kMax = 16'384;
  /// One session may have this part of them.
  static constexpr std::size_t kShare = 4;

  /// The name of a version in the whole pool. Contains the tenant's secret.
  [[nodiscard]] static std::string name_of(const TenantSpec& tenant, std::uint64_t version);
  /// Its value: for whom it is reserved.
  [[nodiscard]] static std::string value_of(std::uint64_t run);

  /// @return kExhausted: kMax, of the node or the session.
  [[nodiscard]] Result<void> check_room(SessionId session) const;
  void add(SessionId session, const std::string& name, const std::string& value);
  struct Taken {
    std::string name;
    std::string value;
  };
  /// Ends one. @return nothing: the session has not reserved it.
  [[nodiscard]] std::vector<Taken> take(SessionId session, const std::string& name);
  /// Ends those of sessions that ended.
  [[nodiscard]] std::vector<Taken> take_ended(const Pool& pool);

 private:
  std::map<SessionId, std::map<std::string, std::string>> of_;
  std::size_t count_ = 0;
};

}  // namespace ho::daemon
