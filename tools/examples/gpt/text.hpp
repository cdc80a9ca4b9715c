#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// The bytes of a text file, held by the host as a data loader would. A value.
class Text {
 public:
  /// @return kInvalidArgument where the file cannot be read or is not longer than `seq` + 1 bytes.
  [[nodiscard]] static Result<Text> read(const std::string& path, std::uint32_t seq);

  /// Fills one step's tokens and, one byte further, targets: options.batch windows of options.seq
  /// bytes at places that depend on seed and step only. Both spans hold batch * seq numbers.
  void batch(const ModelOptions& options, std::uint64_t step, std::span<std::int32_t> tokens,
             std::span<std::int32_t> targets) const;

 private:
  explicit Text(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

}  // namespace ho::gpt
