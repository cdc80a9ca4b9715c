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

/// Weights and KV blocks on the device or in the pool, as plans have it: one for each phase, group
/// and number of blocks, all made ahead and loaded into one runtime, which hands values from plan
/// to plan. Calls to the library throw hyperoffload::Error.
class PlannedPasses final : public PassRunner {
 public:
  /// Measures the model's ops, plans all passes, and gives weights their initial values.
  /// @param hardware  of the pool; device_bytes: the budget
  /// @param prefill_rows  of the longest prompt
  /// @param stopped  asked between plans; where it says so: kCanceled.
  /// @return as build_pass(); kOutOfRange where the budget cannot be met, with the op; kExhausted
  /// where the machine does not have the memory.
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
  std::map<Bucket, Model> models_;  ///< of the first group; the others' differ in names alone
  std::map<Pass, hyperoffload::Plan> plans_;
  OpTimes* measured_ = nullptr;  ///< where run() enters what its ops took
  std::uint64_t swap_ns_ = 0;    ///< passes waited to begin
};

}  // namespace ho::gpt
