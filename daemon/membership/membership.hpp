#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.hpp"
#include "daemon/membership/etcd_client.hpp"
#include "daemon/membership/member_table.hpp"
#include "daemon/membership/phone_book.hpp"

namespace ho::daemon {

/// Keeps this daemon listed in etcd, and reads who else is, on a thread of its own ("ho-members").
///
///   signed out --sign in--> listed --lease lost, key gone--> signed out
///                             +----withdraw()--> withdrawn
///
/// A thread with blocking requests, since they follow one another: the control thread never waits
/// for etcd. The book decides nothing about memory: where etcd is lost, the list stays as it was.
/// Made and ended by one thread; the destructor waits for at most one attempt of a request.
class Membership {
 public:
  struct Options {
    EtcdSettings etcd;
    std::string machine;  ///< as PhoneBook has it
    Member self;
  };
  /// What the daemon shows of it.
  struct View {
    std::vector<NodeInfo> others;
    MembershipStatus status;
  };
  /// Called on the thread after each look at etcd, about once a second.
  using Tell = std::function<void(View)>;

  Membership(Options options, const Clock& clock, Tell tell);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /// Takes this daemon off the list, for good. Does not wait.
  void withdraw();

 private:
  void run();
  void wait(TimePoint until, bool was_withdrawn);
  [[nodiscard]] Result<void> stay_listed();
  [[nodiscard]] Result<void> sign_in();
  [[nodiscard]] Result<void> look(TimePoint now);
  void note(const Result<void>& outcome, TimePoint now);
  [[nodiscard]] View view(TimePoint now) const;

  const Options options_;
  const Clock& clock_;
  const Tell tell_;
  EtcdClient etcd_;
  PhoneBook book_;
  MemberTable table_;
  std::optional<EtcdLease> lease_;  ///< has a value: listed, as far as we know
  bool replaced_ = false;           ///< another daemon signed in with our number
  std::mutex mutex_;                ///< for bell_: a wait of a second that the end cuts short
  std::condition_variable bell_;
  bool stopping_ = false;   ///< under mutex_
  bool withdrawn_ = false;  ///< under mutex_
  std::thread thread_;      ///< last: starts when all the rest is there
};

}  // namespace ho::daemon
