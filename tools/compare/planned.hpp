#pragma once

#include <memory>

#include "common/schedule/schedule.hpp"
#include "tools/compare/pool.hpp"
#include "tools/compare/residence.hpp"
#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// The product: a schedule compiled ahead, replayed by the client library. Refers to the model, the
/// pool and the arena, which outlive it.
class Planned final : public Residence {
 public:
  /// Loads the schedule: proves it, allocates its homes, registers the arena.
  [[nodiscard]] static Result<std::unique_ptr<Planned>> create(const Model& model,
                                                               hyperoffload::Pool& pool,
                                                               const Arena& arena,
                                                               const schedule::Schedule& schedule);

  [[nodiscard]] std::uint32_t position_count() const override;
  [[nodiscard]] OpIndex op_at(std::uint32_t position) const override;
  [[nodiscard]] Result<void> fill(StorageIndex storage, std::span<const std::byte> value) override;
  [[nodiscard]] Result<void> begin_step() override;
  [[nodiscard]] Result<void> before(std::uint32_t position) override;
  [[nodiscard]] void* operand(std::uint32_t position, StorageIndex storage) override;
  [[nodiscard]] Result<void> after(std::uint32_t position) override;
  [[nodiscard]] Result<void> end_step() override;
  [[nodiscard]] Result<Usage> usage() const override;

  /// The last complete step, for the report.
  [[nodiscard]] Result<schedule::MeasuredStep> timeline() const;

 private:
  Planned(hyperoffload::Runtime runtime, hyperoffload::Plan plan)
      : runtime_(std::move(runtime)), plan_(std::move(plan)) {}

  hyperoffload::Runtime runtime_;
  hyperoffload::Plan plan_;
};

}  // namespace ho::gpt
