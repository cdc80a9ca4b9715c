#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/membership/etcd_client.hpp"
#include "daemon/membership/member_table.hpp"

namespace ho::daemon {

/// A name that is to have one value in the whole pool. It may hold a secret: etcd gets its digest.
struct Claim {
  std::string name;
  std::string value;
};

/// The keys of one pool in etcd:
///
///   PREFIX/machines/MACHINE = NODE     never changed: which number a machine has
///   PREFIX/ids/NODE = MACHINE          never changed: whose number it is
///   PREFIX/alive/NODE = MemberRecord   under the lease of a daemon that runs
///   PREFIX/claims/DIGEST = VALUE       likewise: a name that is taken; its SHA-256
///
/// Owner: one thread, which waits for each answer. Outcomes as of EtcdClient.
class PhoneBook {
 public:
  /// @param machine  names this machine; 1 to 64 letters, digits, '.', '_' or '-'.
  PhoneBook(EtcdClient& etcd, std::string prefix, std::string machine)
      : etcd_(etcd), prefix_(std::move(prefix)), machine_(std::move(machine)) {}

  /// The number of this machine: the one it has, else the lowest free one, from now on forever.
  /// @return kExhausted: all are given.
  [[nodiscard]] Result<NodeId> take_number();

  /// Enters a number that this machine has already, where the book lacks it.
  /// @return kConflict: the number is another machine's, or this machine has another number.
  [[nodiscard]] Result<void> keep_number(NodeId node);

  /// Lists this daemon while the lease lives. @return kNotFound: the number is not entered as this
  /// machine's.
  [[nodiscard]] Result<void> sign_in(const Member& self, EtcdLease lease);
  [[nodiscard]] Result<void> sign_out(NodeId node);

  /// Takes a name for one value, under the lease. @return kAlreadyExists: it has another value.
  [[nodiscard]] Result<void> claim(const Claim& claim, EtcdLease lease);
  /// Gives it back, if it has this value.
  [[nodiscard]] Result<void> unclaim(const Claim& claim);

  /// The version of the book, and this daemon's own entry if it is listed.
  struct Glance {
    BookVersion version;
    std::optional<Member> self;
  };
  [[nodiscard]] Result<Glance> glance(NodeId self);

  struct Page {
    BookVersion version;
    std::vector<Member> members;  ///< entries that make no sense are left out
  };
  [[nodiscard]] Result<Page> read();

 private:
  [[nodiscard]] std::string machine_key() const { return prefix_ + "/machines/" + machine_; }
  [[nodiscard]] std::string id_key(NodeId node) const;
  [[nodiscard]] std::string alive_key(NodeId node) const;
  [[nodiscard]] EtcdTransaction entry_of(NodeId node) const;
  [[nodiscard]] std::string claim_key(const std::string& name) const;

  EtcdClient& etcd_;
  const std::string prefix_;
  const std::string machine_;
};

}  // namespace ho::daemon
