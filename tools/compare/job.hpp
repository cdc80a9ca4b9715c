#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.hpp"
#include "tools/compare/record.hpp"
#include "tools/compare/residence.hpp"
#include "tools/examples/gpt/model.hpp"
#include "tools/examples/gpt/text.hpp"

namespace ho::gpt {

/// Trains a model whose tensors a Residence keeps. Refers to all it is given; one thread.
class Job {
 public:
  /// @param stop  checked between ops: when it becomes true the step ends with kCanceled.
  Job(const Model& model, const Text& text, Residence& residence, const std::atomic<bool>& stop);

  /// Gives every persistent storage its initial value. Once, before the first step.
  [[nodiscard]] Result<void> initialise();

  /// Runs the next step. Its time covers everything: inputs, waits, kernels.
  /// @param kernel_ns  empty, or per op of the graph: the kernel's own time is written there.
  [[nodiscard]] Result<StepRecord> step(std::span<std::uint64_t> kernel_ns = {});

 private:
  [[nodiscard]] Result<void> fill_inputs();
  [[nodiscard]] Result<void> run(std::uint32_t position, StepContext& context,
                                 std::span<std::uint64_t> kernel_ns);

  const Model& model_;
  const Text& text_;
  Residence& residence_;
  const std::atomic<bool>& stop_;
  std::uint64_t steps_ = 0;
  std::vector<std::int32_t> tokens_;  // the data loader's copy, as read from the file
  std::vector<std::int32_t> targets_;
  std::vector<void*> pointers_;
};

}  // namespace ho::gpt
