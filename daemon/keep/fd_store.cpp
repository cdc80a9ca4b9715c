#include "daemon/keep/fd_store.hpp"

#include <systemd/sd-daemon.h>

#include <cstdint>
#include <cstdlib>

namespace ho::daemon {

namespace {

/// Names travel in one variable of the environment, which the kernel limits to 128 KiB.
constexpr std::size_t kNamesBytesMax = 100 * std::size_t{1024};
constexpr std::uint64_t kSettleUsMax = 2'000'000;
constexpr std::size_t kNameBytesMax = 12;  // "s" and a number of 10 digits, and a colon

}  // namespace

std::vector<StoredFd> take_stored_fds() {
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &names);
  std::vector<StoredFd> out;
  for (int i = 0; i < count; ++i) {
    out.push_back({names[i], UniqueFd(SD_LISTEN_FDS_START + i)});
    ::free(names[i]);
  }
  ::free(names);
  return out;
}

std::size_t FdStore::count() const {
  const std::lock_guard lock(mutex_);
  return names_.size();
}

void FdStore::note(const std::string& name) {
  const std::lock_guard lock(mutex_);
  names_.insert(name);
}

Result<void> FdStore::put(const std::string& name, int fd) {
  if (descriptors_max_ == 0) return Error(Errc::kUnsupported, "there is no descriptor store");
  const std::lock_guard lock(mutex_);
  if (names_.count(name) > 0) return Error(Errc::kAlreadyExists, name + " is stored already");
  if (names_.size() >= descriptors_max_ || (names_.size() + 1) * kNameBytesMax > kNamesBytesMax) {
    return Error(Errc::kExhausted,
                 "the descriptor store is full: " + std::to_string(names_.size()) + " of " +
                     std::to_string(descriptors_max_));
  }
  // FDPOLL=0: systemd would drop a socket whose other end has gone.
  const std::string message = "FDSTORE=1\nFDPOLL=0\nFDNAME=" + name;
  const int sent = ::sd_pid_notify_with_fds(0, 0, message.c_str(), &fd, 1);
  if (sent < 0) return errno_error(-sent, "sending a descriptor to systemd");
  if (sent == 0) return Error(Errc::kUnavailable, "NOTIFY_SOCKET is not set");
  names_.insert(name);
  return {};
}

void FdStore::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (names_.erase(name) == 0) return;
  static_cast<void>(::sd_notify(0, ("FDSTOREREMOVE=1\nFDNAME=" + name).c_str()));
}

void FdStore::remove_all() {
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names_) {
    static_cast<void>(::sd_notify(0, ("FDSTOREREMOVE=1\nFDNAME=" + name).c_str()));
  }
  names_.clear();
}

Result<void> FdStore::settle() {
  const int done = ::sd_notify_barrier(0, kSettleUsMax);
  if (done < 0) return errno_error(-done, "waiting for systemd");
  return {};
}

}  // namespace ho::daemon
