#pragma once

#include <hyperoffload/hyperoffload.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/generation.hpp"
#include "tools/examples/gpt/plan.hpp"

namespace ho::gpt {

/// Keeps weights and KV blocks on the device or in the pool, as plans say. There is one plan for
/// each phase, group and number of blocks. All are made before the first pass and loaded into one
/// runtime, which hands values from plan to plan. Calls to the library throw hyperoffload::Error.
class PlannedPasses final : public PassRunner {
 public:
  /// Measures the model's ops, plans all passes, and gives weights their initial values.
  /// @param hardware  of the pool; device_bytes: the budget
  /// @param prefill_rows  of the longest prompt
  /// @param copies  of weights and KV blocks on different nodes
  /// @param stopped  asked between plans, and by run() before each op; true: kCanceled.
  /// @return as build_pass(); kOutOfRange with the op if the budget cannot be met; kExhausted if
  /// the machine does not have the memory.
  [[nodiscard]] static Result<std::unique_ptr<PlannedPasses>> create(
      const DecoderOptions& options, hyperoffload::Pool& pool, const Hardware& hardware,
      std::uint32_t prefill_rows, const std::function<bool()>& stopped,
      const analyzer::CopiesByKind& copies = {});

  [[nodiscard]] Result<void> run(const Pass& pass, std::span<const std::int32_t> tokens,
                                 StepContext& context) override {
    return run_timed(pass, tokens, context, nullptr);
  }
  [[nodiscard]] PassUsage usage() const override;
  [[nodiscard]] std::size_t plans() const { return plans_.size(); }

 private:
  /// The shortest time of each kind of op: its phase, and its name without numbers.
  using KindTimes = std::map<std::string, std::uint64_t>;
  using Bucket = std::pair<Phase, std::uint32_t>;  ///< with its number of blocks

  PlannedPasses(const DecoderOptions& options, const Hardware& hardware,
                std::unique_ptr<Arena> arena, hyperoffload::Pool& pool,
                const std::function<bool()>& stopped, const analyzer::CopiesByKind& copies)
      : options_(options),
        hardware_(hardware),
        copies_(copies),
        arena_(std::move(arena)),
        stopped_(stopped),
        runtime_(pool, arena_->data(), arena_->bytes()) {}
  [[nodiscard]] Result<KindTimes> measure();
  [[nodiscard]] Result<void> plan(const Bucket& bucket, const KindTimes& times,
                                  std::uint32_t groups);
  [[nodiscard]] Result<void> run_timed(const Pass& pass, std::span<const std::int32_t> tokens,
                                       StepContext& context, OpTimes* times);

  const DecoderOptions options_;
  const Hardware hardware_;
  const analyzer::CopiesByKind copies_;
  const std::unique_ptr<Arena> arena_;
  const std::function<bool()> stopped_;
  hyperoffload::Runtime runtime_;
  std::map<Bucket, Model> models_;  ///< for group 0; other groups differ only in names
  std::map<Pass, hyperoffload::Plan> plans_;
  std::uint64_t swap_ns_ = 0;  ///< waiting time before passes
};

}  // namespace ho::gpt
