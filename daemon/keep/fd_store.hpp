#pragma once

#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::daemon {

/// A descriptor that outlived the last daemon, with its name.
struct StoredFd {
  std::string name;
  UniqueFd fd;
};

/// Takes the descriptors that systemd passed to this process, once, and clears their environment.
[[nodiscard]] std::vector<StoredFd> take_stored_fds();

/// The descriptors that systemd holds for this service while it restarts. Descriptors stay there
/// when the process dies and when it exits for a restart; they go when the unit stops or fails.
///
/// systemd never says that it did not take one: a full store drops it. So this class counts, and
/// refuses what would not fit.
///
/// Threads: any. A mutex: a descriptor a granted segment, which costs thousands of page faults.
/// Source: sd_notify(3), sd_listen_fds(3), systemd 252.
class FdStore {
 public:
  /// @param descriptors_max  FileDescriptorStoreMax of the unit; 0: there is no store.
  explicit FdStore(std::size_t descriptors_max) : descriptors_max_(descriptors_max) {}
  FdStore(const FdStore&) = delete;
  FdStore& operator=(const FdStore&) = delete;

  [[nodiscard]] std::size_t descriptors_max() const { return descriptors_max_; }
  [[nodiscard]] std::size_t count() const;

  /// It is there already, from an earlier process.
  void note(const std::string& name);
  /// Stores a copy. Names are unique. @return kExhausted: the store is full; kUnavailable: systemd
  /// does not listen.
  [[nodiscard]] Result<void> put(const std::string& name, int fd);
  /// Does nothing if it is not there.
  void remove(const std::string& name);
  void remove_all();
  /// Waits until systemd has read everything above, two seconds at most. @return kDeadline.
  [[nodiscard]] static Result<void> settle();

 private:
  const std::size_t descriptors_max_;
  mutable std::mutex mutex_;
  std::set<std::string> names_;
};

}  // namespace ho::daemon
