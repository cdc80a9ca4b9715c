#pragma once

#include <cstddef>
#include <cstdint>

namespace ho::gpt {

/// The numbers of one Adam update, the same for every tensor of a step.
struct AdamStep {
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
  float correction1 = 0;  ///< 1 - beta1^t
  float correction2 = 0;  ///< 1 - beta2^t
};

/// Where one head of a query finds its keys and values.
struct AttendShape {
  std::size_t count = 0;     ///< number of keys; > 0
  std::size_t head_dim = 0;  ///< floats of a key
  std::size_t stride = 0;    ///< floats from key to key
  float scale = 1.0F;        ///< factor of the scores
};

/// The loops that are not matrix products, as one table per instruction set: the same source is
/// compiled once for each, so one binary runs everywhere and fast. Matrices are row-major, `rows` x
/// `cols`, without padding unless a stride is named. Pure functions of their arguments; the same
/// inputs give the same bits at any address.
struct Elementwise {
  /// y[r] = bias for every row.
  void (*fill_bias)(float* y, const float* bias, std::size_t rows, std::size_t cols);
  /// y[r] = x[r] + bias for every row.
  void (*add_bias)(float* y, const float* x, const float* bias, std::size_t rows, std::size_t cols);
  /// sum[c] = sum over rows of x.
  void (*column_sum)(float* sum, const float* x, std::size_t rows, std::size_t cols);
  /// y = layer norm of x by row; gamma_beta holds gamma, then beta.
  void (*layer_norm)(float* y, const float* x, const float* gamma_beta, std::size_t rows,
                     std::size_t cols);
  /// dx += gradient toward x; d_gamma_beta is overwritten.
  void (*layer_norm_backward)(float* dx, float* d_gamma_beta, const float* dy, const float* x,
                              const float* gamma_beta, std::size_t rows, std::size_t cols);
  void (*gelu)(float* y, const float* x, std::size_t count);
  /// dy becomes dx, in place.
  void (*gelu_backward)(float* dy, const float* x, std::size_t count);
  /// Row r of the square matrix keeps columns 0 .. r, as softmax; the rest becomes zero.
  void (*causal_softmax)(float* scores, std::size_t length);
  /// dp becomes p * (dp - dot of its row with p) * scale, below the diagonal; zero above.
  void (*causal_softmax_backward)(float* dp, const float* p, float scale, std::size_t length);
  /// Adds the values v to out, weighted by exp(scale * q . k). out and stats hold the result of
  /// earlier keys: stats is their largest score and the sum of their weights. At first all three
  /// are zero. Weights are relative to that of the largest score. `scores`: workspace.
  void (*attend)(float* out, float* stats, float* scores, const float* q, const float* k,
                 const float* v, const AttendShape& shape);
  /// Logits become their gradient, scaled by 1 / rows. @return the mean cross-entropy.
  float (*cross_entropy)(float* logits, const std::int32_t* targets, std::size_t rows,
                         std::size_t cols);
  void (*adam)(float* weight, float* m, float* v, const float* gradient, const AdamStep& step,
               std::size_t count);
};

/// The best table that this processor can run. Thread-safe, cheap.
[[nodiscard]] const Elementwise& elementwise();

namespace isa {
[[nodiscard]] const Elementwise& baseline();
[[nodiscard]] const Elementwise& avx2();
[[nodiscard]] const Elementwise& avx512();
}  // namespace isa

}  // namespace ho::gpt
