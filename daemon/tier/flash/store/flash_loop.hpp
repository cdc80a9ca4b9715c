#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/tier/flash/store/extent_store.hpp"

namespace ho::flash {

/// Something for the store to do, as others ask for it. A value.
struct FlashRequest {
  enum class Kind : std::uint8_t {
    kCreate,      ///< owner, length_bytes, policy; a durable one is answered when it is safe
    kFind,        ///< extent, owner.object: a durable extent by its number and secret
    kFree,        ///< extent
    kList,        ///< extents with larger numbers than `extent`, kListMax at most, by number
    kRead,        ///< owner.session, extent, offset_bytes -> memory
    kWrite,       ///< owner.session, memory -> extent, offset_bytes
    kEndSession,  ///< owner: its scratch extents end, transfers that have not begun are canceled
    kForget,      ///< region: no request names it any more
  };
  Kind kind = Kind::kRead;
  std::uint64_t cookie = 0;  ///< the asker's own name for it
  Owner owner;
  Policy policy = Policy::kScratch;
  std::uint64_t length_bytes = 0;
  ExtentId extent;
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> memory;  ///< belongs to the loop until the answer
  std::span<std::byte> region;  ///< that `memory` lies in; announced to the device at first use
};

/// How a request ended. Exactly one per accepted request.
struct FlashAnswer {
  std::uint64_t cookie = 0;
  Errc code = Errc::kOk;
  std::string text;  ///< of a failure: path, extent, block
  ExtentId extent;
  std::uint64_t length_bytes = 0;
  std::vector<ExtentInfo> listed = {};  ///< kList
  bool more = false;                    ///< kList: there are further ones
};

/// The thread that owns a store and its device: the flash half of the node's data threads. It
/// sleeps while nothing is to do. Sessions take turns with their transfers, each in its own order;
/// everything else goes first. What has to wait, for its path's budget say, holds up its session.
/// Owner: the maker's thread, from which requests come too. Lifecycle: start -> listen -> push ...
/// -> stop (what runs ends, what waits is refused, counters made safe) -> destructor.
class FlashLoop {
 public:
  /// Requests accepted and not yet taken as answers. Those that give something back (kFree,
  /// kEndSession, kForget) are never refused.
  static constexpr std::size_t kRequestsMax = 4096;
  /// Extents in one answer.
  static constexpr std::size_t kListMax = 4096;

  struct Options {
    /// Makes the device. Called once, on the loop's thread, which owns the device from then on.
    std::function<Result<std::unique_ptr<Device>>()> make_device;
    std::vector<std::uint64_t> write_bytes_per_day_max;  ///< by path; 0: no budget
    std::uint64_t salt = 0;                              ///< random
    SetId new_set{};                                     ///< random
  };
  struct Status {
    std::vector<PathStatus> paths;
    std::uint64_t extents = 0;
    std::string notice;  ///< the device's
  };

  /// Opens the paths and recovers what they hold; blocks until that is done.
  /// @return what make_device() and ExtentStore::open() return.
  [[nodiscard]] static Result<std::unique_ptr<FlashLoop>> start(Options options);
  ~FlashLoop();
  FlashLoop(const FlashLoop&) = delete;
  FlashLoop& operator=(const FlashLoop&) = delete;

  /// What recovery saw; constant after start().
  [[nodiscard]] const Findings& findings() const { return findings_; }
  /// At most a second old while nothing happens. Any thread.
  [[nodiscard]] Status status() const;

  /// `ring` is called on the loop's thread when answers are there to be taken; it must only post.
  /// Before the first push().
  void listen(std::function<void()> ring);
  /// @return kBusy: kRequestsMax are under way. kUnavailable: stopping.
  [[nodiscard]] Result<void> push(FlashRequest request);
  /// Takes the answers that are there, in the order in which requests ended.
  [[nodiscard]] std::vector<FlashAnswer> take();

  /// Ends the thread. A device that does not let go of its last operations in kStopMax (far beyond
  /// what one takes) ends the process: their memory cannot be given back.
  void stop();
  static constexpr auto kStopMax = std::chrono::seconds(30);

 private:
  struct Running {
    std::uint64_t cookie = 0;
    std::uint64_t bytes = 0;
    bool used = false;
    bool frees = false;  ///< space: whoever hears the answer finds it in the status
  };
  explicit FlashLoop(Options options) : options_(std::move(options)) {}
  [[nodiscard]] Result<std::unique_ptr<ExtentStore>> open();
  void run();
  [[nodiscard]] std::size_t serve();
  [[nodiscard]] std::size_t reap();
  [[nodiscard]] bool serve_one(const FlashRequest& request);
  [[nodiscard]] bool create(const FlashRequest& request);
  [[nodiscard]] std::size_t answer_made();
  void cancel(const Owner& session);
  [[nodiscard]] std::size_t serve_transfers();
  void find(const FlashRequest& request);
  void list(const FlashRequest& request);
  [[nodiscard]] bool start_op(const FlashRequest& request);
  void announce(std::span<std::byte> region);
  void forget(std::span<std::byte> region);
  void answer(FlashAnswer answer);
  void publish(const ExtentStore& store);

  const Options options_;
  Findings findings_;
  std::atomic<bool> stopping_{false};
  std::atomic<Device*> device_{nullptr};  ///< to wake it; lives until the thread has ended
  // Guards what the thread publishes once a turn; nobody waits for it on the data path.
  mutable std::mutex mutex_;
  Status status_;
  // A mutex: a request is a MiB or more, beside which it costs nothing.
  std::mutex queue_mutex_;
  std::deque<FlashRequest> requests_;
  std::vector<FlashAnswer> answers_;
  std::size_t under_way_ = 0;  ///< accepted and not yet answered
  std::function<void()> ring_;

  // The thread's own, from start() to its end.
  std::unique_ptr<ExtentStore> store_;
  // Taken from requests_, not begun: transfers by session, and the rest.
  std::deque<FlashRequest> waiting_;
  std::map<std::uint64_t, std::deque<FlashRequest>> transfers_;
  std::uint64_t last_session_ = 0;   ///< whose turn it was
  std::vector<FlashAnswer> making_;  ///< of durable extents that are not safe yet
  std::vector<Running> running_;     ///< by OpId
  std::vector<std::uint32_t> free_running_;
  std::uint64_t running_bytes_ = 0;
  std::vector<std::span<std::byte>> regions_;  ///< announced to the device
  TimePoint published_;
  std::promise<void> ended_;
  std::thread thread_;
};

/// Days since 1970, UTC.
[[nodiscard]] std::uint32_t today();

}  // namespace ho::flash
