#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ho::gpt {

/// Rows and columns of a linear layer: y[rows, out] = x[rows, in] * weight[in, out] + bias[out].
/// The bias is the last row of the weight's storage, so that a layer is one tensor to plan.
struct LinearShape {
  std::size_t rows = 0;
  std::size_t in = 0;
  std::size_t out = 0;
};

/// Makes OpenBLAS compute only on the calling thread. Once, before any kernel.
void use_one_blas_thread();

/// y = x * weight + bias (+ residual [rows, out] unless it is null). y may not overlap the others.
void linear(float* y, const float* x, const float* weight, const float* residual,
            const LinearShape& shape);
/// dx = dy * weight^T.
void linear_input_gradient(float* dx, const float* dy, const float* weight,
                           const LinearShape& shape);
/// d_weight = x^T * dy, with the column sums of dy as its last row.
void linear_weight_gradient(float* d_weight, const float* x, const float* dy,
                            const LinearShape& shape);

struct AttentionShape {
  std::size_t batch = 0;
  std::size_t seq = 0;
  std::size_t heads = 0;
  std::size_t dim = 0;  ///< over all heads
};

/// Bytes of workspace: one head's scores. Backward takes twice as much, for their gradient.
[[nodiscard]] std::size_t attention_workspace_bytes(const AttentionShape& shape);

/// Causal multi-head attention. qkv [batch * seq, 3 * dim] holds queries, keys, values side by
/// side.
void attention(float* y, const float* qkv, float* workspace, const AttentionShape& shape);
/// Computes scores again head by head: saving them would cost heads * seq floats per token.
void attention_backward(float* d_qkv, const float* dy, const float* qkv, float* workspace,
                        const AttentionShape& shape);

/// A block of the KV cache: for some rows of all sequences their keys, then their values, [batch,
/// 2, block_rows, dim].
struct KvShape {
  std::size_t batch = 0;
  std::size_t rows = 0;  ///< queries per sequence
  std::size_t heads = 0;
  std::size_t dim = 0;         ///< over all heads
  std::size_t block_rows = 0;  ///< rows of the block
};
/// Copies keys and values of qkv [batch * rows, 3 * dim] into the block from `offset_rows` on.
/// Leaves out rows beyond the block's end.
void append_kv(float* block, const float* qkv, const KvShape& shape, std::size_t offset_rows);

/// The rows of the block that a query sees: from its sequence's start to its own.
struct KvWindow {
  std::size_t block_begin = 0;  ///< row of the block's first key
  std::size_t query_begin = 0;  ///< row of the first query of each sequence
  std::span<const std::uint32_t> starts;
};
/// Attends one block. y [batch * rows, dim] and stats [batch * rows, heads, 2] hold the result of
/// earlier blocks, as in Elementwise::attend. `scores`: block_rows floats.
void attend_block(float* y, float* stats, float* scores, const float* qkv, const float* block,
                  const KvShape& shape, const KvWindow& window);
/// Turns the sums over all blocks into attention's result. Queries that saw no key get zeros.
void finish_attention(float* y, const float* stats, const KvShape& shape);

/// y[t] = token_table[tokens[t]] + position_table[t mod seq]. Tokens are below the table's rows.
struct EmbeddingShape {
  std::size_t rows = 0;
  std::size_t seq = 0;
  std::size_t dim = 0;
};
void embed(float* y, const std::int32_t* tokens, const float* token_table,
           const float* position_table, const EmbeddingShape& shape);
/// d_table[tokens[t]] sums dy[t]; without tokens d_table[t mod seq] does.
void embedding_gradient(float* d_table, const std::int32_t* tokens, const float* dy,
                        const EmbeddingShape& shape);

}  // namespace ho::gpt
