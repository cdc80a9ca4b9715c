#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "client/node_fault.hpp"
#include "client/sessions.hpp"
#include "client/stager.hpp"

namespace ho::client {

/// Stages by control messages to the daemons. Answers come on the connections' I/O threads, which
/// put them into a box and ring the transfer thread.
class ControlStager : public Stager {
 public:
  static constexpr std::uint32_t kOpsMax = 64;

  /// `nodes` outlive it, and their connections end after it.
  ControlStager(const std::vector<NodeSession>& nodes, std::shared_ptr<Doorbell> door);

  [[nodiscard]] std::uint64_t op_bytes_max() const override { return kStageBytesMax; }
  [[nodiscard]] Result<void> submit(const StageOp& op) override;
  std::size_t poll(std::span<Completion> out) override;
  [[nodiscard]] std::string explain(NodeIndex node) const override { return said_[node.value()]; }

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
    std::uint64_t number = 0;  ///< 0: free; an answer with another one is late
  };

  const std::vector<NodeSession>& nodes_;
  std::shared_ptr<Doorbell> door_;
  std::shared_ptr<Box> box_ = std::make_shared<Box>();
  SteadyClock clock_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Answer> taken_;
  std::vector<std::string> said_;  ///< by node
  std::uint64_t next_number_ = 1;
};

}  // namespace ho::client
