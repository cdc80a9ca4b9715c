// Compiled once per instruction set; HO_GPT_ISA names the function that returns the table. Nothing
// here may come from a header with inline functions: the linker keeps one copy of those, which
// could be one for a newer processor than this one.
#include "tools/examples/gpt/elementwise.hpp"

namespace ho::gpt::isa {
namespace {

constexpr float kNormEpsilon = 1e-5F;

/// exp by 2^n * p(r), |r| <= ln 2 / 2; relative error below 2e-7. Branch-free, so that the compiler
/// vectorizes loops over it, which it does not with expf.
inline float exponential(float x) {
  x = x > 88.0F ? 88.0F : x;
  x = x < -87.0F ? -87.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const auto bits = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23U;
  return p * __builtin_bit_cast(float, bits);
}

void fill_bias(float* y, const float* bias, std::size_t rows, std::size_t cols) {
  for (std::size_t r = 0; r < rows; ++r) {
    float* out = y + r * cols;
#pragma omp simd
    for (std::size_t c = 0; c < cols; ++c) out[c] = bias[c];
  }
}

void add_bias(float* y, const float* x, const float* bias, std::size_t rows, std::size_t cols) {
  for (std::size_t r = 0; r < rows; ++r) {
    float* out = y + r * cols;
    const float* in = x + r * cols;
#pragma omp simd
    for (std::size_t c = 0; c < cols; ++c) out[c] = in[c] + bias[c];
  }
}

void column_sum(float* sum, const float* x, std::size_t rows, std::size_t cols) {
#pragma omp simd
  for (std::size_t c = 0; c < cols; ++c) sum[c] = 0.0F;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* in = x + r * cols;
#pragma omp simd
    for (std::size_t c = 0; c < cols; ++c) sum[c] += in[c];
  }
}

struct Moments {
  float mean;
  float inverse_deviation;
};

Moments moments(const float* x, std::size_t cols) {
  const auto count = static_cast<float>(cols);
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::size_t c = 0; c < cols; ++c) sum += x[c];
  const float mean = sum / count;
  float squares = 0.0F;
#pragma omp simd reduction(+ : squares)
  for (std::size_t c = 0; c < cols; ++c) squares += (x[c] - mean) * (x[c] - mean);
  return Moments{mean, 1.0F / __builtin_sqrtf(squares / count + kNormEpsilon)};
}

void layer_norm(float* y, const float* x, const float* gamma_beta, std::size_t rows,
                std::size_t cols) {
  const float* gamma = gamma_beta;
  const float* beta = gamma_beta + cols;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* in = x + r * cols;
    float* out = y + r * cols;
    const Moments m = moments(in, cols);
#pragma omp simd
    for (std::size_t c = 0; c < cols; ++c) {
      out[c] = (in[c] - m.mean) * m.inverse_deviation * gamma[c] + beta[c];
    }
  }
}

void layer_norm_backward(float* dx, float* d_gamma_beta, const float* dy, const float* x,
                         const float* gamma_beta, std::size_t rows, std::size_t cols) {
  const float* gamma = gamma_beta;
  float* d_gamma = d_gamma_beta;
  float* d_beta = d_gamma_beta + cols;
#pragma omp simd
  for (std::size_t c = 0; c < 2 * cols; ++c) d_gamma_beta[c] = 0.0F;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* in = x + r * cols;
    const float* up = dy + r * cols;
    float* out = dx + r * cols;
    const Moments m = moments(in, cols);
    float sum = 0.0F;
    float dot = 0.0F;
#pragma omp simd reduction(+ : sum, dot)
    for (std::size_t c = 0; c < cols; ++c) {
      const float hat = (in[c] - m.mean) * m.inverse_deviation;
      const float g = up[c] * gamma[c];
      sum += g;
      dot += g * hat;
    }
    const float mean_g = sum / static_cast<float>(cols);
    const float mean_dot = dot / static_cast<float>(cols);
#pragma omp simd
    for (std::size_t c = 0; c < cols; ++c) {
      const float hat = (in[c] - m.mean) * m.inverse_deviation;
      d_gamma[c] += up[c] * hat;
      d_beta[c] += up[c];
      out[c] += m.inverse_deviation * (up[c] * gamma[c] - mean_g - hat * mean_dot);
    }
  }
}

constexpr float kGeluScale = 1.5957691216F;  // 2 * sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F;

// The tanh form of GELU, written as x * sigmoid(2 u).
void gelu(float* y, const float* x, std::size_t count) {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) {
    const float u = kGeluScale * x[i] * (1.0F + kGeluCubic * x[i] * x[i]);
    y[i] = x[i] / (1.0F + exponential(-u));
  }
}

void gelu_backward(float* dy, const float* x, std::size_t count) {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) {
    const float square = x[i] * x[i];
    const float u = kGeluScale * x[i] * (1.0F + kGeluCubic * square);
    const float du = kGeluScale * (1.0F + 3.0F * kGeluCubic * square);
    const float s = 1.0F / (1.0F + exponential(-u));
    dy[i] *= s + x[i] * s * (1.0F - s) * du;
  }
}

float row_maximum(const float* x, std::size_t count) {
  float best = x[0];
#pragma omp simd reduction(max : best)
  for (std::size_t i = 0; i < count; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

/// x = exp(x - max), @return the sum.
float exponential_row(float* x, std::size_t count) {
  const float top = row_maximum(x, count);
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = exponential(x[i] - top);
    sum += x[i];
  }
  return sum;
}

void causal_softmax(float* scores, std::size_t length) {
  for (std::size_t r = 0; r < length; ++r) {
    float* row = scores + r * length;
    const float scale = 1.0F / exponential_row(row, r + 1);
#pragma omp simd
    for (std::size_t c = 0; c <= r; ++c) row[c] *= scale;
#pragma omp simd
    for (std::size_t c = r + 1; c < length; ++c) row[c] = 0.0F;
  }
}

void causal_softmax_backward(float* dp, const float* p, float scale, std::size_t length) {
  for (std::size_t r = 0; r < length; ++r) {
    float* d_row = dp + r * length;
    const float* row = p + r * length;
    float dot = 0.0F;
#pragma omp simd reduction(+ : dot)
    for (std::size_t c = 0; c <= r; ++c) dot += d_row[c] * row[c];
#pragma omp simd
    for (std::size_t c = 0; c <= r; ++c) d_row[c] = row[c] * (d_row[c] - dot) * scale;
#pragma omp simd
    for (std::size_t c = r + 1; c < length; ++c) d_row[c] = 0.0F;
  }
}

void attend(float* out, float* stats, float* scores, const float* q, const float* k, const float* v,
            const AttendShape& shape) {
  for (std::size_t i = 0; i < shape.count; ++i) {
    const float* key = k + i * shape.stride;
    float dot = 0.0F;
#pragma omp simd reduction(+ : dot)
    for (std::size_t c = 0; c < shape.head_dim; ++c) dot += q[c] * key[c];
    scores[i] = dot * shape.scale;
  }
  const bool first = stats[1] == 0.0F;
  float top = row_maximum(scores, shape.count);
  if (!first && stats[0] > top) top = stats[0];
  const float keep = first ? 0.0F : exponential(stats[0] - top);
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < shape.count; ++i) {
    scores[i] = exponential(scores[i] - top);
    sum += scores[i];
  }
#pragma omp simd
  for (std::size_t c = 0; c < shape.head_dim; ++c) out[c] *= keep;
  for (std::size_t i = 0; i < shape.count; ++i) {
    const float* value = v + i * shape.stride;
    const float weight = scores[i];
#pragma omp simd
    for (std::size_t c = 0; c < shape.head_dim; ++c) out[c] += weight * value[c];
  }
  stats[0] = top;
  stats[1] = stats[1] * keep + sum;
}

float cross_entropy(float* logits, const std::int32_t* targets, std::size_t rows,
                    std::size_t cols) {
  double loss = 0.0;
  const float weight = 1.0F / static_cast<float>(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    float* row = logits + r * cols;
    const auto target = static_cast<std::size_t>(targets[r]);
    const float sum = exponential_row(row, cols);
    const float tiny = 1e-30F;  // exponential() never returns 0, but the quotient may
    const float probability = row[target] / sum;
    loss -= __builtin_log(static_cast<double>(probability > tiny ? probability : tiny));
    const float scale = weight / sum;
#pragma omp simd
    for (std::size_t c = 0; c < cols; ++c) row[c] *= scale;
    row[target] -= weight;
  }
  return static_cast<float>(loss / static_cast<double>(rows));
}

void adam(float* weight, float* m, float* v, const float* gradient, const AdamStep& step,
          std::size_t count) {
  const AdamStep s = step;  // a copy: writes through `weight` cannot change it
  const float rate = s.learning_rate / s.correction1;
  const float scale = 1.0F / s.correction2;
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    m[i] = s.beta1 * m[i] + (1.0F - s.beta1) * g;
    v[i] = s.beta2 * v[i] + (1.0F - s.beta2) * g * g;
    weight[i] -= rate * m[i] / (__builtin_sqrtf(v[i] * scale) + s.epsilon);
  }
}

}  // namespace

const Elementwise& HO_GPT_ISA() {
  static constexpr Elementwise kTable{fill_bias,
                                      add_bias,
                                      column_sum,
                                      layer_norm,
                                      layer_norm_backward,
                                      gelu,
                                      gelu_backward,
                                      causal_softmax,
                                      causal_softmax_backward,
                                      attend,
                                      cross_entropy,
                                      adam};
  return kTable;
}

}  // namespace ho::gpt::isa
