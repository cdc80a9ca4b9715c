#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <vector>

#include "common/base/prng.hpp"
#include "tools/examples/gpt/elementwise.hpp"

namespace ho::gpt {
namespace {

std::vector<float> random_values(std::uint64_t seed, std::size_t count, float scale) {
  Prng prng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = (static_cast<float>(prng.unit()) * 2.0F - 1.0F) * scale;
  return values;
}

TEST_CASE("elementwise: GELU follows its definition over the whole range", "[unit]") {
  const std::vector<float> x = random_values(1, 1000, 12.0F);
  std::vector<float> y(x.size());
  elementwise().gelu(y.data(), x.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double expected = 0.5 * v * (1.0 + std::tanh(0.7978845608 * (v + 0.044715 * v * v * v)));
    REQUIRE(y[i] == Approx(expected).margin(1e-6).epsilon(1e-5));
  }
}

TEST_CASE("elementwise: causal softmax rows sum to one and see no later column", "[unit]") {
  constexpr std::size_t kLength = 37;
  std::vector<float> scores = random_values(2, kLength * kLength, 40.0F);
  elementwise().causal_softmax(scores.data(), kLength);
  for (std::size_t r = 0; r < kLength; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < kLength; ++c) {
      const float value = scores[r * kLength + c];
      sum += value;
      if (c > r) REQUIRE(value == 0.0F);
    }
    REQUIRE(sum == Approx(1.0).epsilon(1e-5));
  }
}

TEST_CASE("elementwise: results do not depend on where the operands lie", "[unit]") {
  constexpr std::size_t kRows = 5;
  constexpr std::size_t kCols = 53;
  const std::vector<float> x = random_values(3, kRows * kCols, 1.0F);
  const std::vector<float> gamma_beta = random_values(4, 2 * kCols, 1.0F);
  std::vector<float> first(kRows * kCols);
  elementwise().layer_norm(first.data(), x.data(), gamma_beta.data(), kRows, kCols);
  for (std::size_t shift = 1; shift < 17; ++shift) {
    std::vector<float> moved_x(x.size() + shift);
    std::copy(x.begin(), x.end(), moved_x.begin() + static_cast<std::ptrdiff_t>(shift));
    std::vector<float> moved(first.size() + 3);
    elementwise().layer_norm(moved.data() + 3, moved_x.data() + shift, gamma_beta.data(), kRows,
                             kCols);
    REQUIRE(std::equal(first.begin(), first.end(), moved.begin() + 3));
  }
}

TEST_CASE("elementwise: every instruction set gives nearly the baseline's numbers", "[unit]") {
  const std::vector<float> x = random_values(5, 4 * 256, 3.0F);
  const std::vector<std::int32_t> targets{0, 17, 200, 255};
  std::vector<float> here = x;
  std::vector<float> base = x;
  const float loss = elementwise().cross_entropy(here.data(), targets.data(), 4, 256);
  const float expected = isa::baseline().cross_entropy(base.data(), targets.data(), 4, 256);
  REQUIRE(loss == Approx(expected).epsilon(1e-5));
  for (std::size_t i = 0; i < here.size(); ++i) {
    REQUIRE(here[i] == Approx(base[i]).margin(1e-6).epsilon(1e-4));
  }
}

}  // namespace
}  // namespace ho::gpt
