#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <vector>

#include "tests/unit/models/small_models.hpp"
#include "tools/models/llama_like.hpp"

using namespace ho;
using namespace ho::models;

TEST_CASE("models: a default turn uses every expert, and a shorter one says what it leaves out") {
  LlamaLike model = small(Phase::kDecode);
  model.batch = 1;
  for (const auto& [experts, active, groups, turn] : std::vector<std::array<std::uint64_t, 4>>{
           {1, 2, 1, 1}, {8, 8, 1, 1}, {8, 2, 1, 4}, {7, 3, 1, 3}, {8, 2, 2, 2}, {16, 1, 3, 6}}) {
    model.experts = experts;
    model.active_experts = std::min(active, experts);
    model.batch = model.groups = groups;
    model.turn_tokens = 0;
    CHECK(default_turn_tokens(model) == turn);
    CHECK(unused_experts(model) == 0);
    const Graph graph = graph_of(model);
    CHECK(weights_used(graph) ==
          static_cast<std::size_t>(
              std::count_if(graph.storages.begin(), graph.storages.end(),
                            [](const Storage& s) { return s.kind == StorageKind::kWeight; })));
    if (turn == 1) continue;
    model.turn_tokens = turn - 1;
    const std::uint64_t unused = unused_experts(model);
    CHECK(unused == experts - model.active_experts * groups * (turn - 1));
    CHECK(weights_used(graph_of(model)) == weights_used(graph) - 4 * 2 * unused);
  }
  // More sequences need more experts at a time.
  model.experts = 8;
  model.active_experts = 2;
  model.batch = 4;  // 8 (1 - (6/8)^4) = 5.5
  model.groups = 1;
  CHECK(default_turn_tokens(model) == 2);
  // A context may be too short for all of them.
  model.experts = 200;
  model.turn_tokens = 0;
  model.context = 5;
  CHECK(unused_experts(model) > 0);
  CHECK(graph_of(model).ops.size() > 0);
}

TEST_CASE("models: over the chunks of a prompt every expert has its turn") {
  LlamaLike model = small(Phase::kPrefill);
  model.layers = 2;
  model.batch = 1;
  model.chunk_tokens = 8;
  model.context = 1024;
  model.experts = 128;
  model.active_experts = 1;
  const std::size_t others = 2 + 2 * 3;  // embedding, head; qkv, out and router of each layer
  CHECK(weights_used(graph_of(model)) == others + 2 * 128 * 2);
}

TEST_CASE("models: an expert touches its matrices and the rows of its own tokens") {
  LlamaLike model = by_bytes(small(Phase::kPrefill));
  model.layers = 1;
  model.batch = 1;
  model.experts = 16;
  model.active_experts = 4;
  const Graph graph = graph_of(model);
  // 96 tokens use all 16 experts, 24 rows each: a row has 64 values, within an expert 2 * 256.
  const double matrices = 16 * 3 * 64.0 * 256;
  const double rows = 16 * 24;
  CHECK(seconds(graph, "", "gate up") == Approx(2 * (matrices * 2 / 3 + rows * (64 + 512))));
  // The sum begins as a copy of all rows; each other expert adds to its own.
  CHECK(seconds(graph, "", "down") ==
        Approx(2 * (matrices / 3 + rows * 512 + 2 * 96 * 64 + 15 * 24 * 2 * 64)));

  LlamaLike train = by_bytes(small(Phase::kTrain));
  train.layers = 1;
  train.batch = 1;
  train.experts = 16;
  train.active_experts = 4;
  // A matrix is read and its gradient written; of 16 experts each reads its rows' gradients.
  CHECK(seconds(graph_of(train), "backward", "down backward") ==
        Approx(2 * (2 * matrices / 3 + rows * (64 + 2 * 512))));
}

TEST_CASE("models: known models have their published sizes") {
  LlamaLike nemo;  // Source: config.json and the sizes of the checkpoint of Mistral-Nemo 12B.
  nemo.layers = 40;
  nemo.hidden = 5120;
  nemo.kv_heads = 8;
  nemo.head_dim = 128;
  nemo.feed_forward = 14336;
  nemo.vocab = 131072;
  CHECK(bytes_of(graph_of(nemo), StorageKind::kWeight) == 2 * 12'247'782'400U);
  CHECK(bytes_of(graph_of(nemo), StorageKind::kKvCache) == 640U << 20U);
  LlamaLike small_cache = nemo;
  small_cache.kv_element_bytes = 1;
  small_cache.weight_bits = 4;
  CHECK(bytes_of(graph_of(small_cache), StorageKind::kKvCache) == 320U << 20U);
  CHECK(bytes_of(graph_of(small_cache), StorageKind::kWeight) == 12'247'782'400U / 2);
  CHECK(bytes_of(graph_of(small_cache), StorageKind::kActivation) ==
        bytes_of(graph_of(nemo), StorageKind::kActivation));
  nemo.tied_embeddings = true;
  CHECK(bytes_of(graph_of(nemo), StorageKind::kWeight) == 2 * (12'247'782'400U - 131'072U * 5120U));

  LlamaLike llama3;  // Source: as above, of Llama-3 70B.
  llama3.layers = 80;
  llama3.hidden = 8192;
  llama3.heads = 64;
  llama3.kv_heads = 8;
  llama3.feed_forward = 28672;
  llama3.vocab = 128256;
  llama3.context = 8192;
  CHECK(bytes_of(graph_of(llama3), StorageKind::kWeight) == 2 * 70'553'706'496U);
  llama3.tensor_parallel = 8;
  const std::uint64_t norms = (2 * 80 + 1) * 8192;  // each rank has them whole
  CHECK(bytes_of(graph_of(llama3), StorageKind::kWeight) ==
        2 * ((70'553'706'496U - norms) / 8 + norms));
  CHECK(bytes_of(graph_of(llama3), StorageKind::kKvCache) == 320U << 20U);

  LlamaLike mixtral;  // Source: as above, of Mixtral 8x7B.
  mixtral.kv_heads = 8;
  mixtral.feed_forward = 14336;
  mixtral.experts = 8;
  CHECK(bytes_of(graph_of(mixtral), StorageKind::kWeight) == 2 * 46'702'792'704U);
  CHECK(bytes_of(graph_of(mixtral), StorageKind::kKvCache) == 512U << 20U);
}

TEST_CASE("models: heads, weights and cache of other sizes move the bytes that they have") {
  LlamaLike model = by_bytes(small(Phase::kDecode));
  model.batch = 1;
  model.block_tokens = 96;
  model.head_dim = 16;  // twice hidden / heads
  model.kv_element_bytes = 1;
  model.weight_bits = 4;
  const Graph graph = graph_of(model);
  CHECK(seconds(graph, "", "attention") == Approx(4.0 * (96 * 2 * 2 * 16 + 2 * 8 * 16 * 2)));
  const double matrix = 64.0 * (8 * 16 + 2 * 2 * 16) + 64;
  CHECK(seconds(graph, "", "qkv") == Approx(4 * (matrix / 2 + 2 * (64 + 8 * 16) + 2 * 2 * 16)));
  CHECK(seconds(graph, "", "embed") == Approx(4 + 64 / 2 + 64 * 2));  // an id, a row, its values
  model.hidden = 60;                                                  // no multiple of the heads
  CHECK(llama_like(model).ok());
  // A tied matrix has one gradient and one state.
  LlamaLike tied = small(Phase::kTrain);
  const std::uint64_t table = 320 * 64;
  const Graph apart = graph_of(tied);
  tied.tied_embeddings = true;
  const Graph one = graph_of(tied);
  for (const auto& [kind, bytes] :
       std::map<StorageKind, std::uint64_t>{{StorageKind::kWeight, 2},
                                            {StorageKind::kGradient, 2},
                                            {StorageKind::kOptimizerState, 12}}) {
    CHECK(bytes_of(apart, kind) - bytes_of(one, kind) == table * bytes);
  }
}

TEST_CASE("models: ranks that serve together have two sums a layer and one of the embedding") {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (const std::uint64_t experts : {1U, 4U}) {
      LlamaLike model = small(phase);
      model.feed_forward = 128;
      model.experts = experts;
      model.flops_per_s = 1e6;
      model.bytes_per_s = 1e30;
      model.network_bytes_per_s = 1e6;
      const Graph whole = graph_of(model);
      model.tensor_parallel = 2;
      const Graph half = graph_of(model);
      CHECK(2 * bytes_of(half, StorageKind::kKvCache) == bytes_of(whole, StorageKind::kKvCache));
      const double rows = phase == Phase::kPrefill ? 96 * 3 : 3;
      const double per_sum = rows * 64 * 2 / 1e6;
      CHECK(seconds(half, "", "all-reduce") == Approx((2 * 4 + 1) * per_sum));
      const double router = 4 * rows * 2 * 64 * static_cast<double>(experts == 1 ? 0 : 4) / 1e6;
      CHECK(2 * (seconds(half, "") - seconds(half, "", "all-reduce")) ==
            Approx(seconds(whole, "") + router).epsilon(1e-4));  // each rank routes
    }
  }
}
