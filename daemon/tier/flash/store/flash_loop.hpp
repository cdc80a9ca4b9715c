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
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/tier/flash/store/extent_store.hpp"

namespace ho::flash {

// What others ask of the store. Values.

struct CreateExtent {
  ExtentSpec spec;  ///< a durable one is answered when a crash cannot undo it
};
/// A durable extent by its number and secret.
struct FindExtent {
  ExtentId extent;
  std::uint64_t access = 0;
};
struct FreeExtent {
  ExtentId extent;
};
/// Extents with larger numbers, FlashLoop::kListMax at most, by number.
struct ListExtents {
  ExtentId after;
};
struct StageBytes {
  std::uint64_t session = 0;     ///< takes turns with others
  TransferOp op;                 ///< `op` and memory belong to the loop until the answer
  std::span<std::byte> segment;  ///< that the memory lies in; announced to the device at first use
};
/// Its scratch extents end, its transfers that have not begun are canceled.
struct EndSession {
  std::uint64_t instance = 0;
  std::uint64_t session = 0;
};
/// No request names this segment any more.
struct ForgetSegment {
  std::span<std::byte> segment;
};
using FlashRequest = std::variant<CreateExtent, FindExtent, FreeExtent, ListExtents, StageBytes,
                                  EndSession, ForgetSegment>;

/// How a request ended.
struct FlashAnswer {
  std::optional<Error> error;           ///< names path, extent and block
  ExtentInfo extent = {};               ///< CreateExtent, FindExtent
  std::vector<ExtentInfo> listed = {};  ///< ListExtents
  bool more = false;                    ///< ListExtents: there are further ones
};

/// The thread that owns a store and its device: the flash half of the node's data threads. It
/// sleeps while nothing is to do. Sessions take turns with their transfers, each in its own order;
/// everything else goes first. What has to wait, for its path's budget say, holds up its session.
/// Owner: the maker's thread, from which requests come too. Lifecycle: start -> listen -> push ...
/// -> stop (what runs ends, what waits is refused, counters made safe) -> destructor.
class FlashLoop {
 public:
  /// Requests accepted and not yet delivered. Those that give something back (FreeExtent,
  /// EndSession, ForgetSegment) are never refused.
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

  /// `ring` is called on the loop's thread when there are answers to deliver; it must only post.
  /// Before the first push().
  void listen(std::function<void()> ring);
  using Answered = std::function<void(const FlashAnswer&)>;
  /// @param answered  called once by a later deliver().
  /// @return kBusy: kRequestsMax are under way. kUnavailable: stopping. Not called then.
  [[nodiscard]] Result<void> push(FlashRequest request, Answered answered);
  /// Hands out the answers that are there, in the order in which requests ended.
  void deliver();

  /// Ends the thread. A device that does not let go of its last operations in kStopMax (far beyond
  /// what one takes) ends the process: their memory cannot be given back.
  void stop();
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
    bool frees = false;  ///< space: whoever hears the answer finds it in the status
  };
  /// A durable extent that is not safe yet.
  struct Making {
    ExtentId extent;
    Answered answered;
  };
  enum class Served : std::uint8_t { kYes, kWaits };

  explicit FlashLoop(Options options) : options_(std::move(options)) {}
  [[nodiscard]] Result<std::unique_ptr<ExtentStore>> open();
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
  [[nodiscard]] Served serve(const ListExtents& what, Answered& answered);
  [[nodiscard]] Served serve(const StageBytes& what, Answered& answered);
  [[nodiscard]] Served serve(const EndSession& what, Answered& answered);
  [[nodiscard]] Served serve(const ForgetSegment& what, Answered& answered);
  [[nodiscard]] Served keep(const Result<void>& started, Answered& answered, Running running);

  void announce(std::span<std::byte> segment);
  void answer(Answered& answered, FlashAnswer answer);
  void publish();

  const Options options_;
  Findings findings_;
  std::atomic<bool> stopping_{false};
  std::atomic<Device*> device_{nullptr};  ///< to wake it; lives until the thread has ended
  // Guards what the thread publishes once a turn; nobody waits for it on the data path.
  mutable std::mutex status_mutex_;
  Status status_;
  // A mutex: a request is a MiB or more, beside which it costs nothing.
  std::mutex queue_mutex_;
  std::deque<Asked> requests_;
  std::vector<Answer> answers_;
  std::size_t under_way_ = 0;  ///< accepted and not yet delivered
  std::function<void()> ring_;

  // The thread's own, from start() to its end.
  std::unique_ptr<ExtentStore> store_;
  // Taken from requests_, not begun: transfers by session, and the rest.
  std::deque<Asked> waiting_;
  std::map<std::uint64_t, std::deque<Asked>> transfers_;
  std::uint64_t last_session_ = 0;  ///< whose turn it was
  std::vector<Making> making_;
  std::vector<Running> running_;  ///< by OpId
  std::vector<std::uint32_t> free_running_;
  std::uint64_t running_bytes_ = 0;
  std::vector<std::span<std::byte>> segments_;  ///< announced to the device
  TimePoint published_;
  std::promise<void> ended_;
  std::thread thread_;
};

/// Days since 1970, UTC.
[[nodiscard]] std::uint32_t today();

}  // namespace ho::flash
