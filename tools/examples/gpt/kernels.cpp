#include "tools/examples/gpt/kernels.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

#include "tools/examples/gpt/elementwise.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {
namespace {

blasint blas(std::size_t value) { return static_cast<blasint>(value); }

/// A row-major matrix inside a larger one: `stride` floats from row to row.
struct Block {
  const float* data;
  std::size_t stride;
  CBLAS_TRANSPOSE transpose = CblasNoTrans;
};

struct Product {
  std::size_t rows;
  std::size_t cols;
  std::size_t inner;
  float alpha = 1.0F;
  float beta = 0.0F;
};

void multiply(float* out, std::size_t out_stride, const Block& a, const Block& b,
              const Product& size) {
  cblas_sgemm(CblasRowMajor, a.transpose, b.transpose, blas(size.rows), blas(size.cols),
              blas(size.inner), size.alpha, a.data, blas(a.stride), b.data, blas(b.stride),
              size.beta, out, blas(out_stride));
}

/// Where one head of one sequence lies in qkv and in the attention's output.
struct Head {
  std::size_t qkv_offset;
  std::size_t out_offset;
};

Head head_at(const AttentionShape& shape, std::size_t batch, std::size_t head) {
  const std::size_t column = head * (shape.dim / shape.heads);
  return Head{batch * shape.seq * 3 * shape.dim + column, batch * shape.seq * shape.dim + column};
}

void head_scores(float* scores, const float* q, const AttentionShape& shape) {
  const std::size_t head_dim = shape.dim / shape.heads;
  const std::size_t stride = 3 * shape.dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  multiply(scores, shape.seq, {q, stride}, {q + shape.dim, stride, CblasTrans},
           {shape.seq, shape.seq, head_dim, scale});
  elementwise().causal_softmax(scores, shape.seq);
}

}  // namespace

void use_one_blas_thread() { openblas_set_num_threads(1); }

void linear(float* y, const float* x, const float* weight, const float* residual,
            const LinearShape& shape) {
  const float* bias = weight + shape.in * shape.out;
  if (residual != nullptr) {
    elementwise().add_bias(y, residual, bias, shape.rows, shape.out);
  } else {
    elementwise().fill_bias(y, bias, shape.rows, shape.out);
  }
  multiply(y, shape.out, {x, shape.in}, {weight, shape.out},
           {shape.rows, shape.out, shape.in, 1.0F, 1.0F});
}

void linear_input_gradient(float* dx, const float* dy, const float* weight,
                           const LinearShape& shape) {
  multiply(dx, shape.in, {dy, shape.out}, {weight, shape.out, CblasTrans},
           {shape.rows, shape.in, shape.out});
}

void linear_weight_gradient(float* d_weight, const float* x, const float* dy,
                            const LinearShape& shape) {
  multiply(d_weight, shape.out, {x, shape.in, CblasTrans}, {dy, shape.out},
           {shape.in, shape.out, shape.rows});
  elementwise().column_sum(d_weight + shape.in * shape.out, dy, shape.rows, shape.out);
}

std::size_t attention_workspace_bytes(const AttentionShape& shape) {
  return shape.seq * shape.seq * sizeof(float);
}

void attention(float* y, const float* qkv, float* workspace, const AttentionShape& shape) {
  const std::size_t head_dim = shape.dim / shape.heads;
  for (std::size_t b = 0; b < shape.batch; ++b) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const Head at = head_at(shape, b, h);
      const float* q = qkv + at.qkv_offset;
      head_scores(workspace, q, shape);
      multiply(y + at.out_offset, shape.dim, {workspace, shape.seq},
               {q + 2 * shape.dim, 3 * shape.dim}, {shape.seq, head_dim, shape.seq});
    }
  }
}

void attention_backward(float* d_qkv, const float* dy, const float* qkv, float* workspace,
                        const AttentionShape& shape) {
  const std::size_t head_dim = shape.dim / shape.heads;
  const std::size_t stride = 3 * shape.dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  float* p = workspace;
  float* dp = workspace + shape.seq * shape.seq;
  const Product to_head{shape.seq, head_dim, shape.seq};
  for (std::size_t b = 0; b < shape.batch; ++b) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const Head at = head_at(shape, b, h);
      const float* q = qkv + at.qkv_offset;
      const float* k = q + shape.dim;
      const float* v = q + 2 * shape.dim;
      const float* up = dy + at.out_offset;
      float* dq = d_qkv + at.qkv_offset;
      head_scores(p, q, shape);
      multiply(dp, shape.seq, {up, shape.dim}, {v, stride, CblasTrans},
               {shape.seq, shape.seq, head_dim});
      multiply(dq + 2 * shape.dim, stride, {p, shape.seq, CblasTrans}, {up, shape.dim}, to_head);
      elementwise().causal_softmax_backward(dp, p, scale, shape.seq);
      multiply(dq, stride, {dp, shape.seq}, {k, stride}, to_head);
      multiply(dq + shape.dim, stride, {dp, shape.seq, CblasTrans}, {q, stride}, to_head);
    }
  }
}

void append_kv(float* block, const float* qkv, const KvShape& shape, std::size_t offset_rows) {
  const std::size_t count = std::min(shape.rows, shape.block_rows - offset_rows);
  for (std::size_t b = 0; b < shape.batch; ++b) {
    float* keys = block + (2 * b * shape.block_rows + offset_rows) * shape.dim;
    float* values = keys + shape.block_rows * shape.dim;
    for (std::size_t t = 0; t < count; ++t) {
      const float* from = qkv + (b * shape.rows + t) * 3 * shape.dim + shape.dim;
      std::copy_n(from, shape.dim, keys + t * shape.dim);
      std::copy_n(from + shape.dim, shape.dim, values + t * shape.dim);
    }
  }
}

void attend_block(float* y, float* stats, float* scores, const float* qkv, const float* block,
                  const KvShape& shape, const KvWindow& window) {
  const std::size_t head_dim = shape.dim / shape.heads;
  AttendShape seen{0, head_dim, shape.dim, 1.0F / std::sqrt(static_cast<float>(head_dim))};
  for (std::size_t at = 0; at < shape.batch * shape.rows; ++at) {
    const std::size_t sequence = at / shape.rows;
    const std::size_t begin = std::max<std::size_t>(window.block_begin, window.starts[sequence]);
    const std::size_t row = window.query_begin + at % shape.rows;
    const std::size_t end = std::min(window.block_begin + shape.block_rows, row + 1);
    if (begin >= end) continue;
    seen.count = end - begin;
    const float* keys =
        block + (2 * sequence * shape.block_rows + begin - window.block_begin) * shape.dim;
    const float* values = keys + shape.block_rows * shape.dim;
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const std::size_t column = h * head_dim;
      elementwise().attend(y + at * shape.dim + column, stats + 2 * (at * shape.heads + h), scores,
                           qkv + at * 3 * shape.dim + column, keys + column, values + column, seen);
    }
  }
}

void finish_attention(float* y, const float* stats, const KvShape& shape) {
  const std::size_t head_dim = shape.dim / shape.heads;
  for (std::size_t i = 0; i < shape.batch * shape.rows * shape.heads; ++i) {
    const float scale = stats[2 * i + 1] > 0.0F ? 1.0F / stats[2 * i + 1] : 0.0F;
    for (std::size_t c = 0; c < head_dim; ++c) y[i * head_dim + c] *= scale;
  }
}

void embed(float* y, const std::int32_t* tokens, const float* token_table,
           const float* position_table, const EmbeddingShape& shape) {
  for (std::size_t t = 0; t < shape.rows; ++t) {
    const float* token = token_table + static_cast<std::size_t>(tokens[t]) * shape.dim;
    elementwise().add_bias(y + t * shape.dim, token, position_table + (t % shape.seq) * shape.dim,
                           1, shape.dim);
  }
}

void embedding_gradient(float* d_table, const std::int32_t* tokens, const float* dy,
                        const EmbeddingShape& shape) {
  std::fill_n(d_table, (tokens != nullptr ? kVocabulary : shape.seq) * shape.dim, 0.0F);
  for (std::size_t t = 0; t < shape.rows; ++t) {
    const std::size_t index =
        tokens != nullptr ? static_cast<std::size_t>(tokens[t]) : t % shape.seq;
    float* row = d_table + index * shape.dim;
    elementwise().add_bias(row, row, dy + t * shape.dim, 1, shape.dim);
  }
}

}  // namespace ho::gpt
