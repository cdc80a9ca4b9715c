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
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/tier/flash/store/extent_store.hpp"

namespace ho::flash {

// Requests to the store. Values.

struct CreateExtent {
  ExtentSpec spec;  ///< a durable extent is answered once no crash can undo it
};
/// Finds a durable extent by its number and secret.
struct FindExtent {
  ExtentId extent;
  std::uint64_t access = 0;
};
struct FreeExtent {
  ExtentId extent;
};
/// Gives extents of FlashLoop::left() to a session.
struct ClaimExtents {
  std::vector<ExtentId> extents;
  std::uint64_t session = 0;
};
/// Lists extents with larger numbers, by number.
struct ListExtents {
  ExtentId after;
  /// Only durable extents that were not in use for this time; 0: all.
  std::chrono::seconds unused_min{0};
};
/// Logs that sessions have these extents open.
struct NoteUsed {
  std::vector<ExtentId> extents;
};
struct StageBytes {
  std::uint64_t session = 0;     ///< sessions take turns
  TransferOp op;                 ///< the loop uses `op` and its memory until the answer
  std::span<std::byte> segment;  ///< contains the memory; announced to the device at first use
};
/// Ends the session's scratch extents, and cancels its transfers that have not begun.
struct EndSession {
  std::uint64_t session = 0;
};
/// No further request names this segment.
struct ForgetSegment {
  std::span<std::byte> segment;
};
using FlashRequest = std::variant<CreateExtent, FindExtent, FreeExtent, ClaimExtents, ListExtents,
                                  NoteUsed, StageBytes, EndSession, ForgetSegment>;

/// The outcome of a request.
struct FlashAnswer {
  std::optional<Error> error;           ///< names path, extent and block
  ExtentInfo extent = {};               ///< CreateExtent, FindExtent
  std::vector<ExtentInfo> listed = {};  ///< ListExtents
  /// ListExtents looks at FlashLoop::kListMax extents. More remain: ask again with this number.
  std::optional<ExtentId> next = {};
  std::chrono::sys_seconds time{};  ///< the store's
};

/// The thread that owns a store and its device: the flash part of the node's data threads. It
/// sleeps while it has no work. Sessions take turns with their transfers, each in its own order;
/// all other requests go first. A request that has to wait, for example for a path's budget, blocks
/// its own session only.
///
/// Owner: the thread that makes it, which also sends requests. Lifecycle: start -> listen -> push
/// ... -> stop (running operations end, waiting ones are refused, counters become durable) ->
/// destructor.
class FlashLoop {
 public:
  /// Limit for requests accepted and not yet delivered. Requests that return something (FreeExtent,
  /// EndSession, ForgetSegment) are never refused.
  static constexpr std::size_t kRequestsMax = 4096;
  /// Limit for the extents that one ListExtents looks at.
  static constexpr std::size_t kListMax = 4096;

  struct Options {
    /// Makes the device. Called once, on the loop's thread, which then owns the device.
    std::function<Result<std::unique_ptr<Device>>()> make_device;
    std::vector<std::uint64_t> write_bytes_per_day_max;  ///< by path; 0: no budget
    std::uint64_t salt = 0;                              ///< random
    SetId new_set{};                                     ///< random
    std::string left;  ///< by the last process, as leave() gave it; empty: nothing
  };
  struct Status {
    std::vector<PathStatus> paths;
    std::uint64_t extents = 0;
    std::map<std::string, std::uint64_t> owned_bytes;  ///< extents, by owner
    std::string notice;                                ///< from the device
  };

  /// Opens the paths and recovers their contents; blocks until then.
  /// @return as make_device() and ExtentStore::open().
  [[nodiscard]] static Result<std::unique_ptr<FlashLoop>> start(Options options);
  ~FlashLoop();
  FlashLoop(const FlashLoop&) = delete;
  FlashLoop& operator=(const FlashLoop&) = delete;

  /// The findings of recovery; constant after start().
  [[nodiscard]] const Findings& findings() const { return findings_; }
  /// The extents taken over from the last process, which belong to nobody: each is to be claimed or
  /// freed. Constant after start().
  [[nodiscard]] const std::vector<ExtentInfo>& left() const { return left_; }
  /// At most one second old while the loop is idle. Any thread.
  [[nodiscard]] Status status() const;
  /// Requests accepted and not yet delivered. Any thread.
  [[nodiscard]] std::size_t under_way() const {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    return under_way_;
  }

  /// Calls `ring` on the loop's thread when there are answers to deliver; it must only post a task.
  /// Call it before the first push().
  void listen(std::function<void()> ring);
  using Answered = std::function<void(const FlashAnswer&)>;
  /// @param answered  called once by a later deliver()
  /// @return kBusy: kRequestsMax are in flight. kUnavailable: stopping. `answered` is then not
  /// called.
  [[nodiscard]] Result<void> push(FlashRequest request, Answered answered);
  /// Delivers the answers so far, in the order in which requests ended.
  void deliver();

  /// Ends the thread. If a device does not finish its last operations within kStopMax (far longer
  /// than an operation takes), this ends the process, since their memory cannot be freed.
  void stop();
  /// The same, and leaves scratch extents to the next process. @return Options::left of its loop.
  [[nodiscard]] std::string leave(const std::set<ExtentId>& extents);
  static constexpr auto kStopMax = std::chrono::seconds(30);

 private:
  struct Asked {
    FlashRequest what;
    Answered answered;
  };
  struct Answer {
    Answered answered;
    FlashAnswer answer;
  };
  /// An operation on the store.
  struct Running {
    Answered answered;  ///< empty: the slot is free
    std::uint64_t bytes = 0;
    bool frees = false;  ///< frees space: the status must show it before the answer arrives
  };
  /// A durable extent that is not durable yet.
  struct Making {
    ExtentId extent;
    Answered answered;
  };
  enum class Served : std::uint8_t { kYes, kWaits };

  explicit FlashLoop(Options options) : options_(std::move(options)) {}
  [[nodiscard]] Result<std::unique_ptr<ExtentStore>> open();
  void end_thread();
  void run();
  void take_requests();
  [[nodiscard]] std::size_t serve_waiting();
  [[nodiscard]] std::size_t serve_transfers();
  [[nodiscard]] std::size_t reap();
  [[nodiscard]] std::size_t answer_made();

  [[nodiscard]] Served serve(Asked& asked);
  [[nodiscard]] Served serve(const CreateExtent& what, Answered& answered);
  [[nodiscard]] Served serve(const FindExtent& what, Answered& answered);
  [[nodiscard]] Served serve(const FreeExtent& what, Answered& answered);
  [[nodiscard]] Served serve(const ClaimExtents& what, Answered& answered);
  [[nodiscard]] Served serve(const ListExtents& what, Answered& answered);
  [[nodiscard]] Served serve(const NoteUsed& what, Answered& answered);
  [[nodiscard]] Served serve(const StageBytes& what, Answered& answered);
  [[nodiscard]] Served serve(const EndSession& what, Answered& answered);
  [[nodiscard]] Served serve(const ForgetSegment& what, Answered& answered);
  [[nodiscard]] Served keep(const Result<void>& started, Answered& answered, Running running);

  void announce(std::span<std::byte> segment);
  void answer(Answered& answered, FlashAnswer answer);
  void publish();

  Options options_;  ///< constant after start()
  Findings findings_;
  std::vector<ExtentInfo> left_;
  std::atomic<bool> stopping_{false};
  std::atomic<Device*> device_{nullptr};  ///< for wake-ups; valid until the thread has ended
  // Protects the values that the thread publishes once per turn; the data path never waits for it.
  mutable std::mutex status_mutex_;
  Status status_;
  // A mutex: a request is a MiB or more, so its cost is negligible.
  mutable std::mutex queue_mutex_;
  std::deque<Asked> requests_;
  std::vector<Answer> answers_;
  std::size_t under_way_ = 0;  ///< accepted and not yet delivered
  std::function<void()> ring_;

  // Used by the thread only, from start() to its end.
  std::unique_ptr<ExtentStore> store_;
  std::chrono::sys_seconds time_{};
  // Taken from requests_ and not begun: transfers by session, and all others.
  std::deque<Asked> waiting_;
  std::map<std::uint64_t, std::deque<Asked>> transfers_;
  std::uint64_t last_session_ = 0;  ///< the session served last
  std::vector<Making> making_;
  std::vector<Running> running_;  ///< by OpId
  std::vector<std::uint32_t> free_running_;
  std::uint64_t running_bytes_ = 0;
  std::vector<std::span<std::byte>> segments_;  ///< announced to the device
  TimePoint published_;
  std::promise<void> ended_;
  std::thread thread_;
};

}  // namespace ho::flash
