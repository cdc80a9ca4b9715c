#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/importers/pytorch/tensor_trace.hpp"

namespace ho::importers {

enum class Phase : std::uint8_t { kForward, kBackward, kOptimizer, kZeroGrad };

/// "forward", "backward", "optimizer", "zero_grad".
[[nodiscard]] std::string phase_name(Phase phase);

/// One lifetime of a storage id, from its allocation to the next allocation at the same address.
struct Life {
  std::uint32_t storage = 0;  ///< its number in the draft
  std::uint64_t bytes = 0;
  std::uint64_t element_bytes = 0;  ///< from its first use
  // Moments: counts of events so far.
  std::uint64_t born = 0;
  std::uint64_t last_read = 0;
  std::uint64_t last_write = 0;
  std::uint64_t mark = 0;    ///< for the replay: number of the last list that contained it
  bool before_step = false;  ///< existed when the trace began
  bool replaced = false;     ///< a later storage got its address
  bool read_first = false;   ///< its first access is a read
  bool accumulated = false;  ///< autograd passed it to AccumulateGrad
  bool gradient = false;     ///< AccumulateGrad added to it
  bool weight_argument = false;
  bool later_argument = false;  ///< was used as an argument other than the first
  bool zeroed_by_optimizer = false;
  std::uint32_t read_phases = 0;  ///< bits 1 << Phase
  std::uint32_t write_phases = 0;
  std::set<std::uint64_t> views;       ///< tensors that are parts or repetitions of it
  std::vector<std::uint32_t> setters;  ///< ops that write it and read nothing
};

/// Separates the storages of a trace. Their ids are addresses, which are reused.
class StorageLives {
 public:
  [[nodiscard]] Life& at(std::uint32_t number) { return lives_.at(number); }
  [[nodiscard]] std::optional<std::uint32_t> current(std::uint64_t storage_id) const;

  /// The lifetime that an input tensor belongs to. A tensor that no op of the trace created existed
  /// before.
  std::uint32_t use(const TensorRef& tensor, std::uint64_t extent_bytes, std::uint64_t now,
                    Draft& draft);
  /// A new allocation under this tensor's storage id.
  std::uint32_t begin(const TensorRef& tensor, std::uint64_t bytes, std::uint64_t now,
                      const std::string& name, Draft& draft);

  void note_read(std::uint32_t number, std::uint64_t now, Phase phase);
  void note_write(std::uint32_t number, std::uint64_t now, Phase phase);

  /// At the end: puts sizes, kinds and persistence into the draft.
  void give_kinds(Draft& draft);

 private:
  void give_kind_before(const Life& life, Storage& storage) const;
  void give_kind_within(const Life& life, Storage& storage, Draft& draft) const;

  std::vector<Life> lives_;
  std::map<std::uint64_t, std::uint32_t> current_;
  [[nodiscard]] bool is_like_a_gradient(const Life& life) const {
    return gradients_.count({life.bytes, life.element_bytes}) != 0;
  }

  std::set<std::pair<std::uint64_t, std::uint64_t>> gradients_;  ///< (bytes, element bytes)
  bool has_backward_ = false;
};

}  // namespace ho::importers
