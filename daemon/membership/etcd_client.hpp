#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/membership/member_table.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

struct EtcdPair {
  std::string key;
  std::string value;
};

/// Keys with their values, as of one version of the store.
struct EtcdPage {
  BookVersion version;
  std::vector<EtcdPair> pairs;  ///< by key
};

/// A lease. Keys that are bound to it vanish when it is not renewed.
struct EtcdLease {
  std::int64_t id = 0;
};

/// Changes that are made together, or not at all.
struct EtcdTransaction {
  std::vector<std::string> absent;  ///< keys that must not exist
  std::vector<EtcdPair> equal;      ///< keys that must have these values
  std::vector<EtcdPair> put;
  EtcdLease lease = {};  ///< all that is put ends with it; 0: none
  std::vector<std::string> erase;
  std::vector<std::string> look;  ///< keys that are read where a condition does not hold
};

struct EtcdOutcome {
  bool done = false;            ///< the conditions held
  std::vector<EtcdPair> found;  ///< those of `look` that exist, if not
};

/// A client of etcd's JSON gateway: plain unary requests over HTTP/1.1.
///
/// Each attempt has half a second. One that fails is repeated at the next endpoint, until each had
/// its turn: a change may have been made though its answer was lost.
/// Owner: one thread, which waits for each answer. cancel() may come from any thread.
///
/// Outcomes of every call: kUnavailable: no endpoint can be reached, or etcd has no quorum.
/// kDeadline: none answered. kPermissionDenied: etcd refuses us. kCorrupt: an answer makes no
/// sense. kCanceled.
class EtcdClient {
 public:
  explicit EtcdClient(const EtcdSettings& settings);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  /// One key, as the majority of etcd's members has it; with `end`, all from it up to there.
  [[nodiscard]] Result<EtcdPage> read(const std::string& key, const std::string& end = {});
  /// All keys that begin with `prefix`, which is not empty.
  [[nodiscard]] Result<EtcdPage> read_all(const std::string& prefix);
  [[nodiscard]] Result<EtcdOutcome> commit(const EtcdTransaction& transaction);
  [[nodiscard]] Result<EtcdLease> grant(std::chrono::seconds time);
  /// @return also kNotFound: the lease has ended.
  [[nodiscard]] Result<void> renew(EtcdLease lease);

  /// From now on a call that fails is not repeated at other endpoints.
  void cancel() { canceled_.store(true); }

 private:
  struct Connection;
  [[nodiscard]] Result<std::string> post(const std::string& path, const std::string& body);
  [[nodiscard]] Result<std::string> attempt(const std::string& url, const std::string& body);

  const EtcdSettings settings_;
  std::size_t turn_ = 0;  ///< the endpoint that is asked next
  std::atomic<bool> canceled_{false};
  std::unique_ptr<Connection> connection_;
};

}  // namespace ho::daemon
