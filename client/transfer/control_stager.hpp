#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "client/transfer/node_fault.hpp"
#include "client/transfer/stager.hpp"
#include "common/base/clock.hpp"

namespace ho::client {

/// Stages by control messages to the daemons. Answers come on the connections' I/O threads, which
/// put them into a box and ring the transfer thread. A daemon that is busy with others' requests is
/// asked again, later each time, until the operation's deadline.
class ControlStager : public Stager {
 public:
  static constexpr std::uint32_t kOpsMax = 64;
  /// Failures whose text is kept: far more than can end before their owners hear of them.
  static constexpr std::uint32_t kTextsMax = 256;
  static constexpr Duration kRetryMin = std::chrono::milliseconds(1);
  static constexpr Duration kRetryMax = std::chrono::milliseconds(32);

  using Done = std::function<void(const Result<void>&)>;
  /// Asks op.flash.node for one operation and returns. `done` hears the answer once, on any thread.
  /// @return kBusy, or another failure: nothing was asked and `done` is not called.
  using Send = std::function<Result<void>(const StageOp& op, Done done)>;
  struct Options {
    Send send;
    std::uint64_t op_bytes_max = 0;  ///< largest size of one request
  };

  /// `clock` outlives it. Answers to `send` may come after it is destroyed.
  ControlStager(Options options, const Clock& clock, std::shared_ptr<Doorbell> door);

  [[nodiscard]] std::uint64_t op_bytes_max() const override { return options_.op_bytes_max; }
  [[nodiscard]] Result<void> submit(const StageOp& op) override;
  std::size_t poll(std::span<Completion> out) override;
  [[nodiscard]] std::string explain(OpId op) const override;

 private:
  struct Answer {
    std::uint32_t slot = 0;
    std::uint64_t number = 0;
    Errc code = Errc::kOk;
    std::string text;
  };
  /// Lives as long as an answer can come. A mutex: a message a MiB.
  struct Box {
    std::mutex mutex;
    std::vector<Answer> answers;
  };
  struct Slot {
    StageOp op;
    std::uint64_t number = 0;            ///< 0: free; an answer with another one is late
    TimePoint again = TimePoint::max();  ///< when to ask again; max: an answer is awaited
    Duration pause = kRetryMin;
    std::string busy;  ///< what was said the last time
  };
  struct Text {
    OpId op;
    std::string text;
  };

  [[nodiscard]] Result<void> ask(std::uint32_t slot);
  void ask_later(Slot& slot, std::string text);
  void keep(OpId op, std::string text);

  const Options options_;
  const Clock& clock_;
  std::shared_ptr<Doorbell> door_;
  std::shared_ptr<Box> box_ = std::make_shared<Box>();
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Answer> taken_;
  std::array<Text, kTextsMax> texts_;  ///< ring
  std::uint64_t texts_count_ = 0;      ///< ever kept
  std::uint64_t next_number_ = 1;
};

}  // namespace ho::client
