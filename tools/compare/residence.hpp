#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"

namespace ho::gpt {

/// What keeping the operands in place has cost so far. Sums over all steps.
struct Usage {
  std::uint64_t peak_device_bytes = 0;  ///< highest end offset used in the arena
  std::uint64_t stall_ns = 0;           ///< the job waited for transfers
  std::uint64_t prefetch_bytes = 0;     ///< pool -> device
  std::uint64_t store_bytes = 0;        ///< device -> pool
  std::uint64_t stage_in_bytes = 0;     ///< flash -> pool memory
  std::uint64_t stage_out_bytes = 0;    ///< pool memory -> flash
};

/// Where a job's tensors are while it runs: the port behind which the policies stand. The job
/// calls, per step: fill() for each INPUT storage, begin_step(), then before(p), operand(p, s) ...,
/// after(p) for p = 0, 1, 2, ..., end_step(). Threads: one. After an error every call but usage()
/// and the destructor is wrong.
class Residence {
 public:
  virtual ~Residence() = default;

  [[nodiscard]] virtual std::uint32_t position_count() const = 0;
  /// The graph's op that runs at a position.
  [[nodiscard]] virtual OpIndex op_at(std::uint32_t position) const = 0;

  /// Gives a storage its value: persistent ones once before the first step, INPUT ones before each.
  /// `value` is the storage's whole size and may be reused when the call returns.
  [[nodiscard]] virtual Result<void> fill(StorageIndex storage,
                                          std::span<const std::byte> value) = 0;
  [[nodiscard]] virtual Result<void> begin_step() = 0;
  /// Waits until every operand of the position is in the arena.
  [[nodiscard]] virtual Result<void> before(std::uint32_t position) = 0;
  /// The operand's address between before() and after() of its position; 64-byte aligned.
  [[nodiscard]] virtual void* operand(std::uint32_t position, StorageIndex storage) = 0;
  [[nodiscard]] virtual Result<void> after(std::uint32_t position) = 0;
  [[nodiscard]] virtual Result<void> end_step() = 0;
  [[nodiscard]] virtual Result<Usage> usage() const = 0;
};

}  // namespace ho::gpt
