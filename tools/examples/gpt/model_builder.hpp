#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/schedule/schedule.hpp"
#include "tools/examples/gpt/kernels.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// A storage that an op uses, and how.
struct Use {
  StorageIndex storage;
  schedule::Access access;
};
inline Use in(StorageIndex s) { return {s, schedule::Access::kRead}; }
inline Use out(StorageIndex s) { return {s, schedule::Access::kWrite}; }
inline Use inout(StorageIndex s) { return {s, schedule::Access::kReadWrite}; }

inline float* f32(void* p) { return static_cast<float*>(p); }
inline const std::int32_t* i32(const void* p) { return static_cast<const std::int32_t*>(p); }

/// A trained tensor and, in training, Adam's two moments of it.
struct Parameter {
  std::string name;
  StorageIndex weight;
  StorageIndex m;
  StorageIndex v;
  std::size_t count = 0;
};

struct Linear {
  Parameter parameter;
  LinearShape shape;
};

struct LayerParameters {
  std::string name;
  Parameter norm1;
  Linear qkv;
  Linear projection;
  Parameter norm2;
  Linear expand;
  Linear contract;
};

/// Appends storages and ops to a model in program order: the parts that a training step and a pass
/// of generation share. Ops of the phase "forward" are recomputable.
class ModelBuilder {
 protected:
  enum class Moments : std::uint8_t { kNone, kOfAdam };

  /// @param rows  of all activations: tokens of a step or pass
  ModelBuilder(const ModelOptions& options, std::size_t rows, std::string phase, Moments moments)
      : rows_(rows), dim_(options.dim), phase_(std::move(phase)), moments_(moments) {
    model_.options = options;
  }

  StorageIndex storage(std::string name, std::size_t bytes, StorageKind kind);
  StorageIndex activation(std::string name, std::size_t floats) {
    return storage(std::move(name), floats * sizeof(float), StorageKind::kActivation);
  }
  void make_parameters();

  Op& op(std::string name, const std::string& phase, const std::vector<Use>& uses, Kernel kernel);
  void add_norm(const Parameter& norm, StorageIndex x, StorageIndex y);
  void add_linear(const Linear& layer, StorageIndex x, StorageIndex y,
                  std::optional<StorageIndex> residual = {});
  /// @param y  x: in place
  void add_gelu(const std::string& layer, StorageIndex x, StorageIndex y);

  Model model_;
  const std::size_t rows_;
  const std::size_t dim_;
  const std::string phase_;
  Parameter token_table_;
  Parameter position_table_;
  std::vector<LayerParameters> layers_;
  Parameter last_norm_;
  Linear head_;

 private:
  Parameter parameter(const std::string& name, std::size_t count);
  Linear linear(const std::string& name, std::size_t from, std::size_t to) {
    return {parameter(name, (from + 1) * to), {rows_, from, to}};
  }

  const Moments moments_;
};

}  // namespace ho::gpt
