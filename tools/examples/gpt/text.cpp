#include "tools/examples/gpt/text.hpp"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/prng.hpp"

namespace ho::gpt {

Result<Text> Text::read(const std::string& path, std::uint32_t seq) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error(Errc::kInvalidArgument, "cannot read the text file " + path);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (bytes.size() < std::size_t{seq} + 2) {
    return Error(Errc::kInvalidArgument, path + " holds " + std::to_string(bytes.size()) +
                                             " bytes; a sequence of " + std::to_string(seq) +
                                             " needs " + std::to_string(seq + 2));
  }
  return Text(std::move(bytes));
}

void Text::batch(const ModelOptions& options, std::uint64_t step, std::span<std::int32_t> tokens,
                 std::span<std::int32_t> targets) const {
  const std::size_t seq = options.seq;
  HO_CHECK(tokens.size() == options.batch * seq && targets.size() == tokens.size());
  Prng prng(options.seed * 0x9e3779b97f4a7c15U + step);
  for (std::size_t b = 0; b < options.batch; ++b) {
    const std::size_t start = prng.below(bytes_.size() - seq);
    for (std::size_t i = 0; i < seq; ++i) {
      tokens[b * seq + i] = static_cast<unsigned char>(bytes_[start + i]);
      targets[b * seq + i] = static_cast<unsigned char>(bytes_[start + i + 1]);
    }
  }
}

}  // namespace ho::gpt
