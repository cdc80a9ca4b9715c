#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
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

  static constexpr std::size_t kClaimsWaitingMax = 256;
  /// Called once: on the thread, or where it ends before that.
  using Claimed = std::function<void(const Result<void>&)>;
  /// Takes a name for this daemon, as long as it is listed; any thread. kAlreadyExists; kBusy: too
  /// many wait; kUnavailable: it is not listed now; kCanceled; else as EtcdClient.
  void claim(Claim claim, Claimed answer);
  /// Gives it back, sooner or later; any thread.
  void unclaim(Claim claim);

 private:
  /// A change of claims that waits for the thread.
  struct Change {
    Claim claim;
    Claimed answer;  ///< null: gives it back
  };

  void run();
  void change_claims(TimePoint until);
  [[nodiscard]] Result<void> take(const Claim& claim);
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
  std::optional<EtcdLease> lease_;             ///< has a value: listed, as far as we know
  std::map<std::string, std::string> claims_;  ///< that it has, by name
  bool replaced_ = false;                      ///< another daemon signed in with our number
  std::mutex mutex_;  ///< for bell_: a wait of a second that the end cuts short
  std::condition_variable bell_;
  bool stopping_ = false;       ///< under mutex_
  bool withdrawn_ = false;      ///< under mutex_
  std::deque<Change> changes_;  ///< under mutex_
  std::thread thread_;          ///< last: starts when all the rest is there
};

}  // namespace ho::daemon
