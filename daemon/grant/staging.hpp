#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/address.hpp"
#include "common/transport/traffic.hpp"
#include "daemon/grant/grants.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"
#include "proto/control/control_values.hpp"

namespace asio {
class io_context;
}

namespace ho::daemon {

/// Manages the flash extents of sessions, and transfers between extents and segments. All checks
/// are here; the flash thread moves the bytes.
///
/// Owner: the control thread, which also runs every callback, exactly once; those of allocate() and
/// stage() never within the call. The memory of a segment
/// is not freed while a transfer uses it, whatever its session does: Grants asks here first.
class Staging {
 public:
  struct Options {
    std::string node_name;
    /// A durable extent that no session had open for this time is freed; 0: never.
    std::chrono::seconds unused_max{0};
    std::string flash_off;  ///< why configured flash is unavailable
  };
  using Made = std::function<void(const Result<FlashExtent>&)>;
  using Done = std::function<void(const Result<void>&)>;
  /// Extents by number, and whether there are more.
  struct Page {
    std::vector<FlashExtentInfo> extents;
    bool more = false;
  };
  using Listed = std::function<void(const Result<Page>&)>;

  /// @param flash  nullptr: no flash; every request is refused with the reason
  Staging(Pool& pool, Grants& grants, flash::FlashLoop* flash, asio::io_context& io,
          Options options);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Stages that have ended, of jobs and of the KV block store. get: flash to memory.
  [[nodiscard]] const transport::Traffic& traffic() const { return traffic_; }

  // For existing sessions only.
  struct Wanted {
    std::uint64_t bytes = 0;
    FlashPolicy policy = FlashPolicy::kScratch;
    std::uint64_t owner_bytes_max = UINT64_MAX;  ///< quota of the owner
    std::string owner;                           ///< empty: the session's
  };
  void allocate(SessionId session, const Wanted& wanted, Made made);
  void open(SessionId session, const FlashExtent& extent, Made made);
  void free(SessionId session, std::uint64_t extent, Done done);
  void stage(SessionId session, const StageSpec& spec, Done done);

  /// For administrators: a page of all extents after `after`; and the end of a durable extent that
  /// no session has open.
  void list(std::uint64_t after, Listed listed);
  void erase(std::uint64_t extent, Done done);

  /// Changes Options::unused_max.
  void set_unused_max(std::chrono::seconds unused_max);
  /// Notes which durable extents are in use, and frees those that no session had open for
  /// `unused_max`, but none in the first hour (or `unused_max`, if that is less) after the start,
  /// or after the system's clock was set forward. To be called every Pool::tick_period().
  void tick(TimePoint now);

  /// Ends the session's scratch extents, cancels transfers that have not begun, and closes the
  /// session. Answers when its memory and its flash are free.
  void close_session(SessionId session, Grants::Ended answer);

  // Extents that pass from one daemon to the next.
  /// Ends the flash thread, and leaves scratch extents. @return what start_flash() needs of them.
  [[nodiscard]] std::string leave(const std::set<flash::ExtentId>& extents);
  /// Gives a session extents of this length that the last daemon left. @return those that are not
  /// there.
  [[nodiscard]] std::vector<std::uint64_t> claim(SessionId session,
                                                 const std::vector<std::uint64_t>& extents,
                                                 std::uint64_t length_bytes);
  /// Frees those that nobody has claimed.
  void free_unclaimed();

  /// Bytes of the scratch extents that the session has.
  [[nodiscard]] std::uint64_t scratch_bytes(SessionId session) const;

  /// True if no request waits for the flash thread.
  [[nodiscard]] bool idle() const { return open_ == 0; }

 private:
  using Answered = flash::FlashLoop::Answered;

  struct OpenExtent {
    std::uint64_t length_bytes = 0;
    flash::Policy policy = flash::Policy::kScratch;
  };
  struct SessionExtents {
    std::map<std::uint64_t, OpenExtent> extents;  ///< by number
    std::uint32_t stages = 0;                     ///< in flight
    std::uint32_t asked_for = 0;                  ///< extents being made or opened
  };
  /// Memory that the flash thread has used.
  struct Used {
    std::span<std::byte> bytes;
    std::uint32_t stages = 0;  ///< in flight
  };
  /// Segments that end, and the action once nothing uses them.
  struct Ending {
    std::vector<SegmentId> segments;
    std::function<void()> then;
  };

  [[nodiscard]] Error no_flash() const;
  void refuse(Error why, Done done);
  [[nodiscard]] Result<void> ask(flash::FlashRequest request, Answered answered);
  void collect();
  void adopt(SessionId session, std::uint64_t access, const flash::FlashAnswer& answer,
             const Made& made);
  void drop(flash::ExtentId extent);
  [[nodiscard]] Result<void> free_extent(std::uint64_t extent, Done done);
  [[nodiscard]] bool in_use(std::uint64_t extent) const;
  void forget_user(std::uint64_t extent, SessionId session);
  [[nodiscard]] bool expires(const flash::ExtentInfo& info) const;
  void sweep(const flash::FlashAnswer& answer, TimePoint now);
  void notice_clock(std::chrono::sys_seconds time, TimePoint now);
  void end_unused(const flash::ExtentInfo& info);
  [[nodiscard]] Page page_of(const flash::FlashAnswer& answer) const;
  [[nodiscard]] Result<void> check_room(SessionId session);
  [[nodiscard]] Result<std::span<std::byte>> check_stage(SessionId session, const StageSpec& spec);
  void before_wipe(const std::vector<SegmentId>& segments, std::function<void()> then);
  [[nodiscard]] bool in_use(const Ending& ending) const;
  void let_go();
  void forget(const Ending& ending);

  Pool& pool_;
  Grants& grants_;
  flash::FlashLoop* const flash_;
  asio::io_context& io_;
  Options options_;
  transport::Traffic traffic_;
  std::map<SessionId, SessionExtents> sessions_;
  std::map<std::uint64_t, std::set<SessionId>> users_;  ///< which sessions have an extent open
  std::multiset<std::uint64_t> opening_;                ///< extents that sessions have asked for
  std::map<std::uint64_t, std::uint64_t> unclaimed_;    ///< bytes by extent
  std::map<SegmentId, Used> used_;
  std::vector<Ending> endings_;
  std::optional<TimePoint> patient_since_;  ///< the first tick, or when the clock was set forward
  std::optional<std::chrono::seconds> clock_ahead_;  ///< the system's clock less the steady one
  std::chrono::seconds note_after_{};  ///< extents in use that were not noted for so long are noted
  flash::ExtentId sweep_after_;
  TimePoint next_sweep_;
  bool sweeping_ = false;
  std::size_t open_ = 0;  ///< requests to the flash thread without an answer yet
};

}  // namespace ho::daemon
