#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "client/transfer/bell.hpp"
#include "common/base/clock.hpp"

namespace ho::client {

/// Why a node can no longer be used.
enum class FaultReason : std::uint8_t {
  kNone = 0,
  kConnectionLost = 1,
  kSessionEnded = 2,  ///< by its lease, or by an administrator
  kUnresponsive = 3,
  kRestarted = 4,
};

[[nodiscard]] constexpr std::string_view fault_text(FaultReason reason) {
  switch (reason) {
    case FaultReason::kNone: return "in order";
    case FaultReason::kConnectionLost: return "its control connection closed";
    case FaultReason::kSessionEnded: return "the session's lease lapsed";
    case FaultReason::kUnresponsive:
      return "a transfer with it failed, and its data path is closed";
    case FaultReason::kRestarted:
      return "its daemon was restarted and did not take this job's memory over";
  }
  return "unknown";
}

/// What wakes the transfer thread. Shared by everyone who has news for it.
struct Doorbell {
  Bell bell;
  std::atomic<std::uint32_t> faults{0};  ///< how many nodes were reported lost
};

/// One node's state as its control connection and lease thread see it. Written once, by any thread.
class NodeFault {
 public:
  explicit NodeFault(std::shared_ptr<Doorbell> door) : door_(std::move(door)) {}

  /// @param said  by the daemon; "": fault_text() of the reason says it.
  void report(FaultReason reason, std::string_view said = {}) {
    {
      const std::lock_guard lock(words_mutex_);
      if (this->reason() != FaultReason::kNone) return;
      words_ = said.empty() ? fault_text(reason) : said;
      reason_.store(static_cast<std::uint8_t>(reason));
    }
    door_->faults.fetch_add(1);
    door_->bell.ring();
  }
  [[nodiscard]] FaultReason reason() const { return static_cast<FaultReason>(reason_.load()); }
  /// Why the node can no longer be used, for people.
  [[nodiscard]] std::string words() const {
    const std::lock_guard lock(words_mutex_);
    return words_;
  }

  /// The node's daemon leaves its sessions to the next one: what ends by its death is worth another
  /// try. Set before the first transfer.
  void set_resumable() { resumable_.store(true); }
  [[nodiscard]] bool resumable() const {
    return resumable_.load() && reason() == FaultReason::kNone;
  }

  /// The daemon let a request's deadline pass. Its data may still move (the local driver needs no
  /// daemon), but shutting down does not wait for it a second time.
  void mark_silent() { silent_.store(true); }
  void mark_answering() { silent_.store(false); }
  [[nodiscard]] bool silent() const { return silent_.load(); }

  /// Until when the node's memory is surely this job's: a lease after the last renewal that was
  /// answered was *sent*. The daemon's own reckoning ends later.
  void set_lease_end(TimePoint end) { lease_end_ns_.store(end.time_since_epoch().count()); }
  [[nodiscard]] TimePoint lease_end() const { return TimePoint(Duration(lease_end_ns_.load())); }
  /// Why the node is lost where an operation got no answer. Operations end with the lease: a job
  /// that was stopped for longer finds it over.
  [[nodiscard]] FaultReason reason_unanswered(TimePoint now) const {
    const bool lapsed = !silent() && now >= lease_end();
    return lapsed ? FaultReason::kSessionEnded : FaultReason::kUnresponsive;
  }

 private:
  std::shared_ptr<Doorbell> door_;
  mutable std::mutex words_mutex_;  ///< a text is not atomic; taken only where a node is lost
  std::string words_;               ///< guarded by words_mutex_
  std::atomic<std::uint8_t> reason_{0};
  std::atomic<bool> silent_{false};
  std::atomic<bool> resumable_{false};
  std::atomic<Duration::rep> lease_end_ns_{TimePoint::max().time_since_epoch().count()};
};

}  // namespace ho::client
