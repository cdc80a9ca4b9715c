#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/tls/certificate.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// The user of another process, as the kernel reports it for a Unix socket.
struct LocalUser {
  uid_t uid = 0;
  std::vector<gid_t> groups;  ///< all of them
};

/// What one owner of sessions may take of this node.
struct Quota {
  std::uint64_t ddr_bytes = UINT64_MAX;
  std::size_t sessions = SIZE_MAX;
  std::uint64_t flash_bytes = UINT64_MAX;   ///< flash extents
  std::uint64_t blocks_bytes = UINT64_MAX;  ///< segments of the block store
  std::uint32_t link_weight = 1;            ///< of the links of `tcp`, against other owners'
  std::uint64_t link_bytes_per_s_min = 0;   ///< of these links, each way
};

/// Says what the users of this node may do, and how much each may take. A value, constant.
class Access {
 public:
  /// Everybody who reaches the socket may open sessions and look; root and this process's user may
  /// do everything; nobody has a quota.
  Access() = default;

  /// Looks up users and groups; waits for the system's directory service.
  /// @param unknown  gets a sentence for each name that is not found, which then grants nothing and
  /// limits nobody, and for each second quota of a user, which replaces the first; nullptr: these
  /// are errors
  /// @return kNotFound: there is none of that name, or the directory does not answer.
  /// kInvalidArgument: a user has two quotas. The message has file, line and field.
  [[nodiscard]] static Result<Access> create(const DaemonConfig& config,
                                             std::vector<std::string>* unknown);

  [[nodiscard]] tls::Role role_of(const LocalUser& user) const;
  /// Whether a local user sees names of others.
  [[nodiscard]] bool sees_others(const LocalUser& user) const;
  /// Whether not everybody sees names of others.
  [[nodiscard]] bool hides() const { return !viewers_.all; }
  /// @param owner  PeerInfo::owner.
  [[nodiscard]] const Quota& quota_of(const std::string& owner) const;
  /// Those that the configuration names, by owner.
  [[nodiscard]] const std::map<std::string, Quota>& quotas() const { return quotas_; }

 private:
  struct Members {
    bool all = true;  ///< no list
    std::set<uid_t> users;
    std::set<gid_t> groups;
    [[nodiscard]] bool has(const LocalUser& user) const;
  };
  [[nodiscard]] static Result<Members> resolve(const std::vector<std::string>& names,
                                               std::vector<std::string>* unknown);

  Members jobs_;
  Members admins_{false, {}, {}};
  Members viewers_;
  std::map<std::string, Quota> quotas_;  ///< by owner
  Quota otherwise_;
};

}  // namespace ho::daemon
