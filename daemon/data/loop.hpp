#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/target.hpp"

namespace ho::daemon {

/// The data thread. Owns every driver's Target: exposes and revokes memory on request and makes
/// progress for initiators. Spins for some tens of microseconds after the last event, then sleeps
/// until a driver's descriptor or a request wakes it; with nothing moving it uses no CPU.
///
/// Threads: the public methods belong to the control thread. Answers are called on the data thread
/// and must only post. Lifecycle: create() -> requests -> stop() (answers every request queued
/// before it) -> destructor.
class DataLoop {
 public:
  struct ExposeRequest {
    std::string driver;
    std::vector<transport::ExposeRequest> regions;  ///< memory outlives the revoke
  };
  struct RevokeRequest {
    std::string driver;
    std::vector<transport::ExposureId> exposures;
  };
  /// The address where the driver serves the session.
  using Admitted = std::function<void(Result<std::string>)>;
  /// As transport::Target::fence().
  using Fenced = std::function<void(Result<std::string>)>;
  using Exposed = std::function<void(Result<std::vector<transport::Exposure>>)>;
  using Revoked = std::function<void()>;

  /// Starts the thread. @return kIo, kExhausted (descriptors).
  [[nodiscard]] static Result<std::unique_ptr<DataLoop>> create(
      std::vector<std::unique_ptr<transport::Target>> targets);
  ~DataLoop();
  DataLoop(const DataLoop&) = delete;
  DataLoop& operator=(const DataLoop&) = delete;

  /// What clients need to know of the drivers.
  [[nodiscard]] const std::vector<transport::TargetCaps>& drivers() const { return drivers_; }

  /// Lets a session in at a driver. @return kBusy: as expose().
  [[nodiscard]] Result<void> admit(const std::string& driver, const transport::Credentials& session,
                                   Admitted answer);
  /// Ends what admit() began, at any driver, after the requests queued before it. Never refused.
  void dismiss(SessionId session);
  /// Ends a rail of a session's. @return kBusy: as expose().
  [[nodiscard]] Result<void> fence(const std::string& driver, SessionId session,
                                   const transport::RailFence& rail, Fenced answer);

  /// All regions or none. @return kBusy: too many requests wait; `answer` is not called then.
  [[nodiscard]] Result<void> expose(ExposeRequest request, Exposed answer);
  /// Never refused: what is exposed bounds how many there can be.
  void revoke(RevokeRequest request, Revoked answer);

  /// Ends every connection of initiators, after the requests queued before it. Exposes that come
  /// later fail; revokes go on.
  void shut();

  /// Answers when the thread has served the requests queued before it: it makes progress. Never
  /// refused: at most one at a time.
  void ping(std::function<void()> answer) { push(std::move(answer)); }

  /// Requests that the thread has not begun. Any thread.
  [[nodiscard]] std::size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }

  void stop();

 private:
  using Request = std::function<void()>;

  DataLoop(std::vector<std::unique_ptr<transport::Target>> targets, UniqueFd wake);
  void run();
  [[nodiscard]] std::size_t serve_requests();
  [[nodiscard]] std::size_t serve_targets();
  void sleep();
  void push(Request request);
  [[nodiscard]] Result<void> push_unless_busy(Request request);
  [[nodiscard]] transport::Target* find(const std::string& driver);
  [[nodiscard]] Result<std::vector<transport::Exposure>> do_expose(const ExposeRequest& request);
  void do_revoke(const RevokeRequest& request);

  std::vector<std::unique_ptr<transport::Target>> targets_;  // data thread only, once it runs
  std::vector<transport::TargetCaps> drivers_;
  UniqueFd wake_;
  // A mutex: requests are rare (grants), and a lock-free queue would buy nothing here.
  mutable std::mutex mutex_;
  std::deque<Request> requests_;
  std::atomic<bool> pending_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace ho::daemon
