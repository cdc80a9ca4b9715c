#pragma once

#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/prng.hpp"
#include "common/base/result.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// The bytes of a text file, which the host holds as a data loader would. A value.
class Text {
 public:
  /// @return kInvalidArgument if the file cannot be read or is not longer than `seq` + 1 bytes.
  [[nodiscard]] static Result<Text> read(const std::string& path, std::uint32_t seq) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (file && bytes.size() >= std::size_t{seq} + 2) return Text(std::move(bytes));
    return Error(Errc::kInvalidArgument,
                 path + (file ? " is shorter than a sequence" : " cannot be read"));
  }

  /// Fills one step's tokens and, one byte later, targets: options.batch windows of options.seq
  /// bytes at places that depend only on seed and step. Both spans hold batch * seq numbers.
  void batch(const ModelOptions& options, std::uint64_t step, std::span<std::int32_t> tokens,
             std::span<std::int32_t> targets) const {
    HO_CHECK(tokens.size() == options.batch * options.seq && targets.size() == tokens.size());
    Prng prng(options.seed * 0x9e3779b97f4a7c15U + step);
    for (std::size_t at = 0; at < tokens.size(); at += options.seq) {
      const std::size_t start = prng.below(bytes_.size() - options.seq);
      for (std::size_t i = 0; i < options.seq; ++i) {
        tokens[at + i] = static_cast<unsigned char>(bytes_[start + i]);
        targets[at + i] = static_cast<unsigned char>(bytes_[start + i + 1]);
      }
    }
  }

 private:
  explicit Text(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

}  // namespace ho::gpt
