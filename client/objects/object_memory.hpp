#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/objects/chunks.hpp"
#include "client/pool/pool.hpp"
#include "client/transfer/engine.hpp"
#include "client/transfer/pace.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// Set by another thread or a signal handler: calls under way end soon, with kCanceled.
using StopFlag = std::atomic<bool>;

/// @param stop  may be null: never.
/// @return kCanceled: it is set.
[[nodiscard]] inline Result<void> go_on(const StopFlag* stop) {
  if (stop == nullptr || !stop->load()) return {};
  return Error(Errc::kCanceled, "the caller stopped it");
}

/// A job's memory of one tensor.
struct ObjectMemory {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::optional<LocalHandles> registered;  ///< by the job; else it is registered for as long
};

/// Memory of tensors, registered. One thread at a time.
class RegisteredTensors {
 public:
  explicit RegisteredTensors(Pool& pool) : pool_(pool) {}
  RegisteredTensors(const RegisteredTensors&) = delete;
  RegisteredTensors& operator=(const RegisteredTensors&) = delete;
  ~RegisteredTensors() {
    for (const LocalHandles& handles : own_) pool_.unregister_memory(handles);
  }

  [[nodiscard]] Result<void> add(const ObjectMemory& memory) {
    list_.push_back(memory);
    if (memory.registered || memory.bytes == 0) return {};
    const auto handles = pool_.register_memory({memory.data, memory.bytes});
    if (!handles) return handles.error();
    own_.push_back(*handles);
    list_.back().registered = *handles;
    return {};
  }
  [[nodiscard]] const ObjectMemory& at(std::size_t index) const { return list_[index]; }

 private:
  Pool& pool_;
  std::vector<ObjectMemory> list_;
  std::vector<LocalHandles> own_;
};

/// Registered memory for pieces that are not one run of the job's memory. One thread at a time.
class BounceBuffer {
 public:
  /// On their way at a time.
  static constexpr std::size_t kPieces = 16;

  explicit BounceBuffer(Pool& pool) : pool_(pool) {}
  BounceBuffer(const BounceBuffer&) = delete;
  BounceBuffer& operator=(const BounceBuffer&) = delete;
  ~BounceBuffer() {
    if (handles_) pool_.unregister_memory(*handles_);
  }

  /// Takes the memory, once.
  [[nodiscard]] Result<void> prepare() {
    if (handles_) return {};
    bytes_.resize(kPieces * kObjectPieceBytes);
    const auto handles = pool_.register_memory(bytes_);
    if (!handles) return handles.error();
    handles_ = *handles;
    return {};
  }
  /// Room for a piece: what next() returned kPieces calls ago. @pre prepare()
  [[nodiscard]] std::byte* next() {
    return bytes_.data() + (number_++ % kPieces) * kObjectPieceBytes;
  }
  [[nodiscard]] const LocalHandles& handles() const { return *handles_; }

 private:
  Pool& pool_;
  std::vector<std::byte> bytes_;
  std::optional<LocalHandles> handles_;
  std::size_t number_ = 0;
};

/// Bulk transfers of one thread, several at a time; all have ended when it is destroyed.
class TransferWindow {
 public:
  /// @param bytes_per_s  start() waits so that together they keep to this rate; 0: it never waits
  /// @param stop  while it is set, start() starts nothing and does not wait
  explicit TransferWindow(Engine& engine, std::uint64_t bytes_per_s = 0,
                          const StopFlag* stop = nullptr)
      : engine_(engine), stop_(stop) {
    if (bytes_per_s > 0) pace_.emplace(static_cast<double>(bytes_per_s));
  }
  TransferWindow(const TransferWindow&) = delete;
  TransferWindow& operator=(const TransferWindow&) = delete;
  ~TransferWindow() {
    while (!tickets_.empty()) static_cast<void>(wait_first());
  }

  [[nodiscard]] Result<void> start(Direction direction, const ArenaMap& arena,
                                   std::uint64_t arena_offset_bytes, std::byte* memory,
                                   std::uint64_t bytes, const LocalHandles& local) {
    Transfer transfer;
    transfer.direction = direction;
    transfer.arena = &arena;
    transfer.arena_offset_bytes = arena_offset_bytes;
    transfer.memory = memory;
    transfer.bytes = bytes;
    transfer.local = local;
    transfer.traffic = transport::TrafficClass::kBulk;  // a plan's step beside it comes first
    if (auto ok = take_turn(bytes); !ok) return ok;
    const auto ticket = engine_.start(transfer);
    if (!ticket) return ticket.error();
    tickets_.push_back(*ticket);
    return {};
  }
  [[nodiscard]] std::size_t size() const { return tickets_.size(); }
  /// Waits for the one that was started first.
  [[nodiscard]] Result<void> wait_first() {
    const std::uint64_t ticket = tickets_.front();
    tickets_.pop_front();
    return engine_.wait(ticket);
  }

 private:
  /// Waits until the rate allows so many bytes.
  [[nodiscard]] Result<void> take_turn(std::uint64_t bytes) {
    if (!pace_) return go_on(stop_);
    constexpr Duration kLookMax = std::chrono::milliseconds(50);
    const TimePoint due = pace_->due(bytes, clock_.now());
    for (TimePoint now = clock_.now();; now = clock_.now()) {
      if (auto ok = go_on(stop_); !ok) return ok;
      if (now >= due) break;
      std::this_thread::sleep_for(std::min<Duration>(kLookMax, due - now));
    }
    pace_->take(bytes, clock_.now());
    return {};
  }

  Engine& engine_;
  const StopFlag* stop_;
  SteadyClock clock_;
  std::optional<Pace> pace_;
  std::deque<std::uint64_t> tickets_;
};

}  // namespace ho::client
