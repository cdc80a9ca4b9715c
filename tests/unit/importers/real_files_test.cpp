#include <catch2/catch.hpp>

#include <map>

#include "common/model/check_graph.hpp"
#include "tests/support/test_data.hpp"
#include "tests/unit/importers/traces.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::test {
namespace {

using Importer = Result<importers::Imported> (*)(std::string_view, const importers::Options&);

/// The step in one of the public traces and models.
Graph import_real(const char* file, Importer importer) {
  const std::string bytes = test_data(std::string("traces/") + file);
  auto made = importer(bytes, {});
  REQUIRE(error_of(made).empty());
  CHECK(check_graph(made->graph).ok());
  const auto again = importer(bytes, {});
  CHECK(again->graph == made->graph);
  return std::move(made->graph);
}

struct Sum {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
};

std::map<StorageKind, Sum> by_kind(const Graph& graph) {
  std::map<StorageKind, Sum> sums;
  for (const Storage& storage : graph.storages) {
    ++sums[storage.kind].count;
    sums[storage.kind].bytes += storage.bytes;
  }
  return sums;
}

std::map<std::string, std::size_t> by_phase(const Graph& graph) {
  std::map<std::string, std::size_t> counts;
  for (const Op& op : graph.ops) ++counts[op.phase];
  return counts;
}

TEST_CASE("real files: LLaMA-7B's step has the model's weights, gradients and states") {
  const Graph graph = import_real("llama7b_b4_seq4096.rank0.et.gz", importers::import_chakra);
  // 32 layers of wqkv, wo, wup, wgate, wdown (d 4096, ff 11008), two embeddings of 32000 x 4096.
  constexpr std::uint64_t kLayer = 4096 * (3 * 4096 + 4096 + 3 * 11008);
  constexpr std::uint64_t kParameters = 32 * kLayer + 2 * 32000ULL * 4096;
  CHECK(graph.ops.size() == 4964);
  auto kinds = by_kind(graph);
  CHECK(kinds[StorageKind::kWeight].count == 32 * 5 + 2);
  CHECK(kinds[StorageKind::kWeight].bytes == 2 * kParameters);
  CHECK(kinds[StorageKind::kOptimizerState].bytes == 8 * kParameters);
  // One gradient per weight and micro batch, and their sum per layer and embedding.
  CHECK(kinds[StorageKind::kGradient].count == 4 * 162 + 34);
  CHECK(kinds[StorageKind::kGradient].bytes == 5 * 2 * kParameters);
  CHECK(kinds[StorageKind::kInput].count == 4);
  auto phases = by_phase(graph);
  CHECK(phases["optimizer"] == 2 * 34);
  CHECK(phases["forward"] == 1804);
  CHECK(phases["backward"] == 3092);
  const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
  CHECK(peak > 18 * kParameters);  // weights, states and four micro batches of gradients
  CHECK(peak < 20 * kParameters);
}

TEST_CASE("real files: a rank of the parallel LLaMA-7B run has its share, and its communication") {
  const Graph graph = import_real("llama7b_tp2pp2_b8.rank0.et.gz", importers::import_chakra);
  CHECK(graph.ops.size() == 6219);
  std::size_t fixed = 0;
  for (const Op& op : graph.ops) fixed += op.fixed ? 1 : 0;
  CHECK(fixed == 1281 + 8 + 8);
  auto kinds = by_kind(graph);
  // 16 of 32 layers, each half; the embedding is not split.
  constexpr std::uint64_t kLayer = 4096 * (3 * 4096 + 4096 + 3 * 11008);
  CHECK(kinds[StorageKind::kWeight].bytes == 2 * (16 * kLayer / 2 + 32000ULL * 4096));
  CHECK(kinds[StorageKind::kWeight].count == 16 * 5 + 1);
}

TEST_CASE("real files: the linear layers of schema 1.0.1 keep their gradients through zero_grad") {
  const Graph graph = import_real("linear_et.json.gz", importers::import_pytorch);
  auto kinds = by_kind(graph);
  CHECK(kinds[StorageKind::kWeight].count == 42);
  CHECK(kinds[StorageKind::kWeight].bytes == 21 * (1024 * 1024 + 1024) * 4ULL);
  CHECK(by_phase(graph)["zero_grad"] == 42);
  CHECK(by_phase(graph)["optimizer"] == 42);
}

TEST_CASE("real files: the ONNX GPT has 12 layers of 768 with all sizes inferred") {
  const Graph graph = import_real("gpt12x768_noweights.onnx.gz", importers::import_onnx);
  constexpr std::uint64_t kD = 768;
  // Per layer 12 d^2 + 9 d of products and MLP biases; norms are shared; head and table apart.
  auto kinds = by_kind(graph);
  const std::uint64_t products = 12 * 12 * kD * kD + 2 * 50257 * kD;
  CHECK(kinds[StorageKind::kWeight].bytes > 4 * products);
  CHECK(kinds[StorageKind::kWeight].bytes < 4 * products + (4U << 20U));
  CHECK(kinds[StorageKind::kInput].count == 2);
  std::size_t products_seen = 0;
  for (const Op& op : graph.ops) products_seen += op.name.find("MatMul") != std::string::npos;
  CHECK(products_seen == 12 * 6 + 1);
  const Storage* const logits = find_storage(graph, "/m/head/MatMul_output_0");
  REQUIRE(logits != nullptr);
  CHECK(logits->bytes == 256 * 50257 * 4ULL);
}

}  // namespace
}  // namespace ho::test
