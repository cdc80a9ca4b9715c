#pragma once

#include <hyperoffload/hyperoffload.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/model/hardware.hpp"
#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/generation.hpp"

namespace ho::gpt {

/// Keeps weights and KV blocks on the device or in the pool, as plans say. There is one plan for
/// each phase, group and number of blocks. All are made before the first pass and loaded into one
/// runtime, which hands values from plan to plan. Calls to the library throw hyperoffload::Error.
class PlannedPasses final : public PassRunner {
 public:
  /// Measures the model's ops, plans all passes, and gives weights their initial values.
  /// @param hardware  of the pool; device_bytes: the budget
  /// @param prefill_rows  of the longest prompt
  /// @param stopped  asked between plans; true: kCanceled.
  /// @return as build_pass(); kOutOfRange with the op if the budget cannot be met; kExhausted if
  /// the machine does not have the memory.
  [[nodiscard]] static Result<std::unique_ptr<PlannedPasses>> create(
      const DecoderOptions& options, hyperoffload::Pool& pool, const Hardware& hardware,
      std::uint32_t prefill_rows, const std::function<bool()>& stopped);

  [[nodiscard]] Result<void> run(const Pass& pass, std::span<const std::int32_t> tokens,
                                 StepContext& context) override;
  [[nodiscard]] PassUsage usage() const override;
  [[nodiscard]] std::size_t plans() const { return plans_.size(); }

 private:
  /// The shortest time of each kind of op: its phase, and its name without numbers.
  using OpTimes = std::map<std::string, std::uint64_t>;
  using Bucket = std::pair<Phase, std::uint32_t>;  ///< with its number of blocks

  PlannedPasses(const DecoderOptions& options, const Hardware& hardware,
                std::unique_ptr<Arena> arena, hyperoffload::Pool& pool)
      : options_(options),
        hardware_(hardware),
        arena_(std::move(arena)),
        runtime_(pool, arena_->data(), arena_->bytes()) {}
  [[nodiscard]] Result<OpTimes> measure();
  [[nodiscard]] Result<void> plan(const Bucket& bucket, const OpTimes& times, std::uint32_t groups);
  void write_weights();

  const DecoderOptions options_;
  const Hardware hardware_;
  const std::unique_ptr<Arena> arena_;
  hyperoffload::Runtime runtime_;
  std::map<Bucket, Model> models_;  ///< for group 0; other groups differ only in names
  std::map<Pass, hyperoffload::Plan> plans_;
  OpTimes* measured_ = nullptr;  ///< where run() records the times of ops
  std::uint64_t swap_ns_ = 0;    ///< waiting time before passes
};

}  // namespace ho::gpt
