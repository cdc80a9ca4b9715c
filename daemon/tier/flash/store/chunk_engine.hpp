#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/op.hpp"
#include "daemon/tier/flash/device/aligned_memory.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/journal.hpp"
#include "daemon/tier/flash/store/chunk.hpp"
#include "daemon/tier/flash/store/store_path.hpp"
#include "daemon/tier/flash/store/transfer.hpp"

namespace ho::flash {

/// Runs transfers, chunk by chunk.
///
///   read:   device -> checksums -> (copy out) -> ended
///   write:  (read old ends, copy in) -> device, checksums beside -> [durable: journal] -> ended
///
/// Transfers start in the order of start(), each as far as there are chunks, buffers and room on
/// the device. A transfer without a free block on its path waits for that path; others overtake it.
/// Owner: the store's thread. Allocates nothing after construction.
class ChunkEngine {
 public:
  struct Options {
    std::size_t transfers_max = 0;
    std::size_t chunks_max = 0;        ///< limit at a time; includes chunks that wait for the log
    std::size_t bounce_buffers = 0;    ///< number of buffers of 1 MiB
    std::uint32_t device_ops_max = 0;  ///< limit for chunks on the device
  };
  using Paths = std::vector<std::unique_ptr<StorePath>>;

  /// @param paths  must outlive the engine
  ChunkEngine(Device& device, Paths& paths, const Options& options);
  ChunkEngine(const ChunkEngine&) = delete;
  ChunkEngine& operator=(const ChunkEngine&) = delete;

  /// Admits a transfer if the write budgets allow it. Its writes then count as promised until it
  /// ends. @return kBusy, kExhausted as StorePath::check_budget(); nothing is promised then.
  [[nodiscard]] Result<void> admit(const Transfer& transfer);
  /// Ends the promise of an admitted transfer that will not start.
  void abandon(const Transfer& transfer);
  /// Accepts an admitted transfer; issue() starts it. It must stay in place until it is in ended().
  /// At most transfers_max at a time.
  void start(Transfer& transfer);
  /// Starts everything that can start now.
  void issue();

  /// A device operation ended that does not belong to a journal.
  void on_device(const Completion& completion);
  /// The journal has ended the commit of a chunk.
  void on_commit(const Commit& commit, Errc code);

  /// Transfers that ended since the last clear_ended(), in that order.
  [[nodiscard]] const std::vector<Transfer*>& ended() const { return ended_; }
  void clear_ended() { ended_.clear(); }
  /// Number of bytes whose checksums were checked since the last call.
  [[nodiscard]] std::uint64_t take_checked_bytes() { return std::exchange(checked_bytes_, 0); }
  /// The engine's operations on the device, which use its memory.
  [[nodiscard]] std::uint32_t open_ops() const { return device_open_; }

 private:
  using Slot = std::uint32_t;

  /// A ring with room for all transfers.
  class Queue {
   public:
    explicit Queue(std::size_t capacity) : ring_(capacity) {}
    [[nodiscard]] bool empty() const { return count_ == 0; }
    [[nodiscard]] Transfer& front() const { return *ring_[first_]; }
    void push(Transfer& transfer);
    void pop();

   private:
    std::vector<Transfer*> ring_;
    std::size_t first_ = 0;
    std::size_t count_ = 0;
  };

  enum class Role : std::uint8_t { kData = 0, kHead = 1, kTail = 2 };
  enum class Started : std::uint8_t { kYes, kNoRoom, kNoSpace, kFailed };
  enum class Placed : std::uint8_t { kYes, kWait, kFailed };
  /// The needs of a transfer, by path.
  using Needs = std::array<WriteNeed, kPathsMax>;

  [[nodiscard]] Needs need_left(const Transfer& transfer) const;
  void settle_data(Chunk& chunk);

  [[nodiscard]] bool issue_from(Queue& queue);
  [[nodiscard]] Started start_chunks(Transfer& transfer);
  [[nodiscard]] Started start_chunk(Transfer& transfer);
  [[nodiscard]] Placed place_read(Chunk& chunk);
  [[nodiscard]] Placed place_write(Chunk& chunk);
  void fill_ends(Slot index);
  void start_write(Slot index);
  void submit(Slot index, Role role, DeviceOpKind kind);

  void on_filled(Slot index, Role role, Errc code);
  void on_read(Slot index, Errc code);
  void on_written(Slot index, Errc code);
  void fail(Transfer& transfer, Errc code, const Fault& fault);
  void finish_write(Slot index, Errc code);
  void finish_chunk(Slot index, Errc code, std::uint32_t bad_block = 0);
  void end(Transfer& transfer);

  [[nodiscard]] Fault fault_at(const Chunk& chunk, std::uint32_t block,
                               std::uint32_t physical) const;
  [[nodiscard]] StorePath& path_of(const Chunk& chunk) const { return *paths_[chunk.path.value()]; }
  [[nodiscard]] std::uint16_t path_count() const {
    return static_cast<std::uint16_t>(paths_.size());
  }

  Device& device_;
  Paths& paths_;
  const std::uint32_t device_ops_max_;
  std::uint32_t device_open_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<Slot> free_chunks_;
  AlignedMemory bounce_memory_;
  std::vector<std::byte*> free_bounces_;
  Queue starting_;
  std::vector<Queue> for_space_;  ///< by path: transfers that wait for a free block there
  std::uint64_t checked_bytes_ = 0;
  std::vector<Transfer*> ended_;
};

}  // namespace ho::flash
