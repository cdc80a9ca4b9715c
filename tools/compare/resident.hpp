#pragma once

#include <memory>
#include <vector>

#include "tools/compare/residence.hpp"
#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// Offsets for every storage of a graph, such that storages alive at the same time do not overlap.
struct Layout {
  std::vector<std::uint64_t> offset_bytes;  ///< per storage; multiples of 64
  std::uint64_t bytes = 0;                  ///< highest end offset
};

/// With inputs there from the start of the step.
[[nodiscard]] Layout pack_resident(const Graph& graph);

/// The largest sum of operand sizes of one op, each rounded up to 64 bytes: no policy can do with
/// less.
struct LargestOp {
  OpIndex op;
  std::uint64_t bytes = 0;
};
[[nodiscard]] LargestOp largest_op(const Model& model);

/// Everything on the device all the time: the limit the others are held against. No pool.
class Resident final : public Residence {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Resident>> create(const Model& model);

  [[nodiscard]] const Arena& arena() const { return *arena_; }

  [[nodiscard]] std::uint32_t position_count() const override;
  [[nodiscard]] OpIndex op_at(std::uint32_t position) const override { return OpIndex(position); }
  [[nodiscard]] Result<void> fill(StorageIndex storage, std::span<const std::byte> value) override;
  [[nodiscard]] Result<void> begin_step() override { return {}; }
  [[nodiscard]] Result<void> before(std::uint32_t) override { return {}; }
  [[nodiscard]] void* operand(std::uint32_t position, StorageIndex storage) override;
  [[nodiscard]] Result<void> after(std::uint32_t) override { return {}; }
  [[nodiscard]] Result<void> end_step() override { return {}; }
  [[nodiscard]] Result<Usage> usage() const override;

 private:
  Resident(const Model& model, Layout layout, std::unique_ptr<Arena> arena)
      : model_(model), layout_(std::move(layout)), arena_(std::move(arena)) {}

  const Model& model_;
  Layout layout_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace ho::gpt
