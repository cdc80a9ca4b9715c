#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/store.hpp"

namespace ho::flash {

struct FlashPathOptions {
  std::string path;
  std::uint64_t write_bytes_per_day_max = 0;  ///< 0: no budget
};

/// The thread that owns a store and its device. It sleeps while nothing is to do.
/// Owner: the maker's thread. Lifecycle: start -> status ... -> stop (counters made safe) ->
/// destructor.
class FlashLoop {
 public:
  struct Options {
    std::vector<FlashPathOptions> paths;
    std::uint64_t salt = 0;  ///< random
    SetId new_set{};         ///< random
  };
  struct Status {
    std::vector<PathStatus> paths;
    std::uint64_t extents = 0;
    std::string notice;  ///< the device's
  };

  /// Opens the paths and recovers what they hold; blocks until that is done.
  /// @return what make_uring_device() and Store::open() return.
  [[nodiscard]] static Result<std::unique_ptr<FlashLoop>> start(Options options);
  ~FlashLoop();
  FlashLoop(const FlashLoop&) = delete;
  FlashLoop& operator=(const FlashLoop&) = delete;

  /// What recovery saw; constant after start().
  [[nodiscard]] const Findings& findings() const { return findings_; }
  /// At most a second old while nothing happens. Any thread.
  [[nodiscard]] Status status() const;

  void stop();

 private:
  explicit FlashLoop(Options options) : options_(std::move(options)) {}
  [[nodiscard]] Result<std::unique_ptr<Store>> open();
  void run();
  void publish(const Store& store);

  const Options options_;
  Findings findings_;
  std::atomic<bool> stopping_{false};
  std::atomic<Device*> device_{nullptr};  ///< to wake it; lives until the thread has ended
  // Guards what the thread publishes once a turn; nobody waits for it on the data path.
  mutable std::mutex mutex_;
  Status status_;
  std::unique_ptr<Store> store_;  ///< the thread's, from start() to its end
  std::thread thread_;
};

/// Days since 1970, UTC.
[[nodiscard]] std::uint32_t today();

}  // namespace ho::flash
