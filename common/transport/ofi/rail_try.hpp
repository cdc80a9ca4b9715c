#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ofi/connection.hpp"

namespace ho::transport {

/// One try to connect a rail that was given up, on a thread of its own: connecting blocks, and the
/// transport's owner has other rails and peers to serve.
///
/// Owner thread: the transport's. Destroying it ends the try and waits for its thread, for kTime at
/// most.
class RailTry {
 public:
  using Connections = std::vector<std::unique_ptr<Connection>>;
  /// Of a rail whose link is up, milliseconds.
  static constexpr Duration kTime = std::chrono::seconds(1);

  struct Rail {
    std::uint32_t number = 0;
    OfiAddress address;
    Endpoint::Reach how;
    std::uint32_t lanes = 0;  ///< connections to make
  };
  /// `clock` outlives it. @return kExhausted: there is no thread or memory for it.
  [[nodiscard]] static Result<std::unique_ptr<RailTry>> begin(Rail rail, const Clock& clock);
  RailTry(const RailTry&) = delete;
  RailTry& operator=(const RailTry&) = delete;
  ~RailTry();

  [[nodiscard]] std::uint32_t rail() const { return rail_.number; }
  /// Nobody wants its outcome any more. Does not wait.
  void stop() { clock_.stop(); }
  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  /// Once it is done: all of the rail's connections, or why there are none (kExhausted: no memory).
  [[nodiscard]] Result<Connections> take() { return std::move(*outcome_); }

 private:
  RailTry(Rail rail, const Clock& clock);
  /// Time is up for whoever looks, once it is stopped.
  class StoppableClock final : public Clock {
   public:
    explicit StoppableClock(const Clock& clock) : clock_(clock) {}
    void stop() { stopped_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] TimePoint now() const override {
      return stopped_.load(std::memory_order_relaxed) ? TimePoint::max() : clock_.now();
    }

   private:
    const Clock& clock_;
    std::atomic<bool> stopped_{false};
  };
  [[nodiscard]] Result<Connections> connect() const;

  const Rail rail_;
  StoppableClock clock_;
  const TimePoint end_;
  std::optional<Result<Connections>> outcome_;  ///< the thread's, until done_
  std::atomic<bool> done_{false};
  std::thread thread_;  ///< last: it begins when all else is there
};

}  // namespace ho::transport
