#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/accel/device_order.hpp"
#include "client/transfer/command_ring.hpp"
#include "common/base/check.hpp"
#include "common/model/graph.hpp"

namespace ho::client {

/// Device memory that the job places itself, as one plan sees it: the address of each storage's
/// bytes, and what the transfer thread needs the job's thread for. The transfer thread never takes
/// or drops memory: it asks, and the job's thread answers when it next calls the runtime.
///
///   transfer thread --ask()--> requests --next_request()--> job's thread: take or drop
///   transfer thread <--next_answer()-- answers <--answer()--
///
/// On an accelerator memory is taken and dropped in the order of the job's stream: it may be used
/// there at once. So a request to drop says which copies the stream has to wait for first, and an
/// answer which work of the stream may still use the memory that was taken.
///
/// Threads: as each function says. An answer happens before the transfer thread sees it, so the
/// address that the job's thread wrote before it is seen too.
class HostedMemory {
 public:
  enum class Ask : std::uint8_t { kTake, kDrop };
  struct Request {
    Ask ask = Ask::kTake;
    std::uint32_t flight = 0;  ///< the transfer thread's name for it
    StorageIndex storage;
    DeviceOrder after;  ///< before a drop on an accelerator, the job's stream waits for it
  };
  struct Answer {
    std::uint32_t flight = 0;
    std::uint64_t job_mark = 0;  ///< taken on an accelerator: DeviceStreams::mark_job()
  };

  /// At most `flights_max` requests are without an answer at a time.
  HostedMemory(std::size_t storages, std::size_t flights_max)
      : addresses_(storages), requests_(room_for(flights_max)), answers_(room_for(flights_max)) {}

  /// Where the storage's bytes are; null: not on the device. Any thread.
  [[nodiscard]] std::byte* address(StorageIndex storage) const {
    return addresses_[storage.value()].load(std::memory_order_acquire);
  }
  /// The job's thread, while nothing is moved from or to the storage's bytes.
  void set_address(StorageIndex storage, std::byte* address) {
    addresses_[storage.value()].store(address, std::memory_order_release);
  }

  /// The transfer thread.
  void ask(const Request& request) {
    const bool posted = requests_.push(request);
    HO_CHECK(posted);
    asked_ += 1;
  }
  [[nodiscard]] std::optional<Answer> next_answer() {
    Answer answer;
    if (!answers_.pop(answer)) return std::nullopt;
    answers_read_ += 1;
    return answer;
  }
  /// Whether it has seen all answers so far. The job's thread waits meanwhile.
  [[nodiscard]] bool answers_read() const { return answers_read_ == answered_; }
  /// Requests ever made.
  [[nodiscard]] std::uint64_t asked() const { return asked_; }
  /// Forgets requests and answers; the job's thread waits meanwhile.
  void clear() {
    Request request;
    while (requests_.pop(request)) {
    }
    while (next_answer()) {
    }
  }

  /// The job's thread.
  [[nodiscard]] std::optional<Request> next_request() {
    Request request;
    if (!requests_.pop(request)) return std::nullopt;
    return request;
  }
  void answer(const Answer& answer) {
    const bool posted = answers_.push(answer);
    HO_CHECK(posted);
    answered_ += 1;
  }

 private:
  static std::size_t room_for(std::size_t count) {
    std::size_t room = 2;
    while (room < count) room *= 2;
    return room;
  }

  std::vector<std::atomic<std::byte*>> addresses_;
  CommandRing<Request> requests_;
  CommandRing<Answer> answers_;
  std::uint64_t asked_ = 0;
  std::uint64_t answers_read_ = 0;
  std::uint64_t answered_ = 0;  ///< the job's thread's own
};

}  // namespace ho::client
