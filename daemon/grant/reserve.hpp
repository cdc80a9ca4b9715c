#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/system/numa.hpp"
#include "daemon/keep/keeper.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/tier/ddr/segment_maker.hpp"
#include "daemon/tier/ddr/segment_memory.hpp"

namespace asio {
class io_context;
class thread_pool;
}  // namespace asio

namespace ho::daemon {

/// Memory that is taken for grants to come (`ddr_reserve`), so that no other process can have it:
/// whole segments, faulted in, that no session ever had. Each share of the pool has as many as it
/// has segments that are not granted. The next daemon takes them over.
///
///   fill(): one segment after the other -> full -> take() for a grant
///                 ^-------- look(): a granted segment ended and was given back to the system
///
/// Between the end of a granted segment and the new one in its place, others may get the memory;
/// then look() tries again each second, and grants fail with kExhausted meanwhile.
///
/// Owner: the control thread, except where a method says otherwise. Lifecycle: fill() -> stop()
/// -> leave() if another process takes over -> destructor.
class Reserve {
 public:
  struct Parts {
    const Pool& pool;
    SegmentMaker& maker;
    Keeper& keeper;
    asio::io_context& io;
  };
  /// @param how  each segment is made, without rights: take()'s caller seals it with them.
  Reserve(const Parts& parts, const SegmentMemory::Spec& how);
  ~Reserve();
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;

  /// Adds what the last process left, before fill().
  void adopt(std::vector<Inherited::Reserved> left);
  /// Takes what is missing. @param progress  called after each segment, with the bytes so far.
  /// @param filled  called once: all is there, or why it is not (kExhausted, with numbers).
  void fill(std::function<void(std::uint64_t)> progress, std::function<void(Result<void>)> filled);
  /// Any thread. nullopt: there is none for this place.
  [[nodiscard]] std::optional<SegmentMemory> take(std::optional<NumaNode> place);
  /// Any thread.
  [[nodiscard]] std::uint64_t bytes() const;
  /// A granted segment's bytes are free again, or time has passed.
  void look();
  /// Gives back what is too much: a grant was made without the reserve while this one was filled.
  /// No grant is being made, whose worker has not taken its segments yet.
  void drop_surplus();
  /// Waits for the thread. Nothing is made any more.
  void stop();
  /// Stored segments outlive this process.
  void leave();

 private:
  struct Ready {
    SegmentMemory memory;
    std::optional<NumaNode> place;
    bool stored = false;  ///< the keeper has it
  };
  void make(std::optional<NumaNode> place);
  void made(Result<SegmentMemory> memory, std::optional<NumaNode> place, bool stored,
            std::uint64_t number);
  void report(const Result<void>& outcome);
  [[nodiscard]] std::uint64_t ready_bytes(std::optional<NumaNode> place) const;
  /// Bytes that a share lacks; negative: it has too much.
  [[nodiscard]] std::int64_t missing(std::optional<NumaNode> place) const;
  [[nodiscard]] std::vector<std::optional<NumaNode>> places() const;

  const Parts parts_;
  const SegmentMemory::Spec how_;
  const SteadyClock clock_;
  // A mutex: a grant's worker takes some segments, each of which would cost thousands of page
  // faults.
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Ready> ready_;  ///< by number
  std::uint64_t last_number_ = 0;
  bool making_ = false;
  bool stopped_ = false;
  bool short_ = false;  ///< the log knows that memory is missing
  TimePoint not_before_;
  std::function<void(std::uint64_t)> progress_;
  std::function<void(Result<void>)> filled_;
  std::unique_ptr<asio::thread_pool> worker_;
};

}  // namespace ho::daemon
