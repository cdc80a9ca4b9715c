#include "daemon/control/access.hpp"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

namespace ho::daemon {

namespace {

std::optional<unsigned> as_number(const std::string& text) {
  unsigned value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Reads an entry of a system database by one of its reentrant functions.
/// @param what  "user NAME", for the error.
template <typename Entry, typename Look>
Result<Entry> look_up(const std::string& what, Look look) {
  std::vector<char> room(16 * 1024);
  Entry entry{};
  Entry* found = nullptr;
  int code = 0;
  do {
    code = look(&entry, room.data(), room.size(), &found);
    if (code == ERANGE) room.resize(2 * room.size());
  } while (code == EINTR || (code == ERANGE && room.size() <= (1U << 20U)));
  if (found != nullptr) return entry;
  if (code == 0) return Error(Errc::kNotFound, "there is no " + what);
  return errno_error(code, what + " cannot be looked up");
}

Result<uid_t> find_user(const std::string& name) {
  if (const auto number = as_number(name)) return uid_t{*number};
  const auto look = [&](passwd* to, char* room, std::size_t size, passwd** found) {
    return ::getpwnam_r(name.c_str(), to, room, size, found);
  };
  const auto entry = look_up<passwd>("user \"" + name + "\"", look);
  if (!entry) return entry.error();
  return entry->pw_uid;
}

Result<gid_t> find_group(const std::string& name) {
  if (const auto number = as_number(name)) return gid_t{*number};
  const auto look = [&](group* to, char* room, std::size_t size, group** found) {
    return ::getgrnam_r(name.c_str(), to, room, size, found);
  };
  const auto entry = look_up<group>("group \"" + name + "\"", look);
  if (!entry) return entry.error();
  return entry->gr_gid;
}

}  // namespace

bool Access::Members::has(const LocalUser& user) const {
  if (all || users.count(user.uid) == 1) return true;
  return std::any_of(user.groups.begin(), user.groups.end(),
                     [&](gid_t group) { return groups.count(group) == 1; });
}

Result<Access::Members> Access::resolve(const std::vector<std::string>& names,
                                        std::vector<std::string>* unknown) {
  Members out;
  for (const std::string& name : names) {
    std::optional<Error> failed;
    if (name.front() == '@') {
      const auto group = find_group(name.substr(1));
      if (group) out.groups.insert(*group);
      if (!group) failed = group.error();
    } else {
      const auto user = find_user(name);
      if (user) out.users.insert(*user);
      if (!user) failed = user.error();
    }
    if (!failed) continue;
    if (unknown == nullptr) return *failed;
    unknown->push_back(failed->context());
  }
  return out;
}

Result<Access> Access::create(const DaemonConfig& config, std::vector<std::string>* unknown) {
  const AccessSettings& settings = config.access;
  Access out;
  const std::pair<const AccessSettings::Names*, std::pair<const char*, Members*>> lists[] = {
      {&settings.jobs, {"jobs", &out.jobs_}},
      {&settings.admins, {"admins", &out.admins_}},
      {&settings.viewers, {"viewers", &out.viewers_}}};
  for (const auto& [names, to] : lists) {
    if (names->empty()) continue;
    auto members = resolve(*names, unknown);
    if (!members) {
      return config.at_field("access", members.error().at("access: " + std::string(to.first)));
    }
    *to.second = std::move(*members);
    to.second->all = false;
  }
  std::set<std::string> seen;
  for (const QuotaSettings& one : settings.quotas) {
    Quota quota;
    if (one.ddr_bytes) quota.ddr_bytes = *one.ddr_bytes;
    if (one.sessions) quota.sessions = *one.sessions;
    if (one.flash_bytes) quota.flash_bytes = *one.flash_bytes;
    if (one.blocks_bytes) quota.blocks_bytes = *one.blocks_bytes;
    quota.link_weight = one.link_weight;
    quota.link_bytes_per_s_min = one.link_bytes_per_s_min;
    if (!one.user.empty()) {
      const auto user = find_user(one.user);
      if (!user && unknown == nullptr) {
        return config.at_field("quotas", user.error().at("quotas: user"));
      }
      if (!user) {
        unknown->push_back(user.error().context());
        continue;
      }
      const std::string owner = "uid " + std::to_string(*user);
      out.quotas_[owner] = quota;
      // A name and a number may be one user, which only the system's directory tells.
      if (seen.insert(owner).second) continue;
      const Error twice(Errc::kInvalidArgument, "two for user " + one.user + ", who is " + owner);
      if (unknown == nullptr) return config.at_field("quotas", twice.at("quotas"));
      unknown->push_back(twice.context());
    } else if (!one.certificate.empty()) {
      out.quotas_[tls::Identity{one.certificate, tls::Role::kJob}.text()] = quota;
    } else {
      out.otherwise_ = quota;
    }
  }
  return out;
}

tls::Role Access::role_of(const LocalUser& user) const {
  if (user.uid == 0 || user.uid == ::geteuid() || admins_.has(user)) return tls::Role::kAdmin;
  return jobs_.has(user) ? tls::Role::kJob : tls::Role::kReader;
}

bool Access::sees_others(const LocalUser& user) const {
  return viewers_.has(user) || role_of(user) == tls::Role::kAdmin;
}

const Quota& Access::quota_of(const std::string& owner) const {
  const auto found = quotas_.find(owner);
  return found == quotas_.end() ? otherwise_ : found->second;
}

}  // namespace ho::daemon
