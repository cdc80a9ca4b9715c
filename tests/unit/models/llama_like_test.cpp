#include "tools/models/llama_like.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tests/support/test_data.hpp"
#include "tests/unit/models/small_models.hpp"
#include "tools/analyzer/analyzer.hpp"

using namespace ho;
using namespace ho::models;

namespace {

/// FLOPs of the matrix products of all layers for one token: 2 per weight, without norms.
double product_flops_per_token(const LlamaLike& m, double feed_forward) {
  const auto h = static_cast<double>(m.hidden);
  const double kv = h / static_cast<double>(m.heads) * static_cast<double>(m.kv_heads);
  return 2 * static_cast<double>(m.layers) * (h * (h + 2 * kv) + h * h + 3 * h * feed_forward);
}

std::string refusal(const LlamaLike& model) {
  const auto made = llama_like(model);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code() == Errc::kInvalidArgument);
  return made.error().context();
}

}  // namespace

TEST_CASE("models: the default has as many parameters as the published model") {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kTrain}) {
    LlamaLike model;
    model.phase = phase;
    // Source: sizes of the checkpoint, without the rotary frequencies.
    CHECK(bytes_of(graph_of(model), StorageKind::kWeight) == 2 * 6'738'415'616U);
  }
  LlamaLike large;
  large.phase = Phase::kTrain;
  large.layers = 80;
  large.hidden = 8192;
  large.heads = 64;
  large.kv_heads = 8;
  large.feed_forward = 28672;
  const Graph graph = graph_of(large);
  CHECK(bytes_of(graph, StorageKind::kWeight) == 2 * 68'976'648'192U);
  CHECK(bytes_of(graph, StorageKind::kGradient) == 2 * 68'976'648'192U);
  CHECK(bytes_of(graph, StorageKind::kOptimizerState) == 12 * 68'976'648'192U);
}

TEST_CASE("models: the last token's logits and the loss are what the job reads after the step") {
  CHECK(bytes_of(graph_of(small(Phase::kTrain)), StorageKind::kOutput) == 4);
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    CHECK(bytes_of(graph_of(small(phase)), StorageKind::kOutput) == 3 * 320 * 2);
  }
}

TEST_CASE("models: the KV cache has each token of each sequence once, whatever the blocks are") {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (const std::uint64_t block : {0U, 1U, 7U, 32U, 96U, 500U}) {
      LlamaLike model = small(phase);
      model.block_tokens = block;
      const std::uint64_t per_token = 2 * (64 / 8 * 2) * 2;
      CHECK(bytes_of(graph_of(model), StorageKind::kKvCache) == 4 * 96 * 3 * per_token);
    }
  }
}

TEST_CASE("models: FLOPs are those of the products and of attention") {
  const double feed_forward = 256;
  SECTION("a whole prompt") {
    const LlamaLike model = by_flops(small(Phase::kPrefill));
    const Graph graph = graph_of(model);
    const double head = 3 * 2 * 64 * 320;
    const double attention = 4.0 * 4 * 64 * 3 * (96 * 97 / 2);
    CHECK(seconds(graph, "", "attention") == Approx(attention));
    CHECK(seconds(graph, "") ==
          Approx(96 * 3 * product_flops_per_token(model, feed_forward) + head + attention));
  }
  SECTION("a training step: backward takes two products for one, attention five for two") {
    const LlamaLike model = by_flops(small(Phase::kTrain));
    const Graph graph = graph_of(model);
    const double products = 96 * 3 * (product_flops_per_token(model, feed_forward) + 2 * 64 * 320);
    const double attention = 4.0 * 4 * 64 * 3 * (96 * 97 / 2);
    CHECK(seconds(graph, "forward") == Approx(products + attention));
    CHECK(seconds(graph, "backward") == Approx(2 * products + 2.5 * attention));
  }
  SECTION("a prompt in chunks, and by blocks that fit them or not, computes the same") {
    LlamaLike whole = by_flops(small(Phase::kPrefill));
    const double attention = seconds(graph_of(whole), "", "attention");
    const double all = seconds(graph_of(whole), "");
    for (const std::uint64_t chunk : {1U, 10U, 32U, 95U}) {
      for (const std::uint64_t block : {0U, 3U, 16U, 96U}) {
        LlamaLike model = whole;
        model.chunk_tokens = chunk;
        model.block_tokens = block;
        const Graph graph = graph_of(model);
        CHECK(seconds(graph, "", "attention") == Approx(attention));
        CHECK(seconds(graph, "") == Approx(all));
      }
    }
  }
}

TEST_CASE("models: a decoded token reads the weights once and the cache up to itself") {
  LlamaLike model = by_bytes(small(Phase::kDecode));
  model.batch = 1;
  model.block_tokens = 10;
  const Graph graph = graph_of(model);
  const double cache = 4.0 * 96 * 2 * 16 * 2;
  // Per attention op a query is read and a result written, and read again from the second on.
  const double blocks = 10;
  const double rows = 4 * (blocks * 2 + blocks - 1) * 64 * 2;
  CHECK(seconds(graph, "", "attention") == Approx(cache + rows));
  // An append writes its token, not its block.
  const double qkv_weights = 4.0 * (64 * (64 + 32) + 64) * 2;
  CHECK(seconds(graph, "", "qkv") == Approx(qkv_weights + 4 * (2 * 64 + 32) * 2));

  // The token before the last reads a block that is not full yet, and not its empty part.
  model.turn_tokens = 2;
  const double shorter_cache = 4.0 * 95 * 2 * 16 * 2;
  CHECK(seconds(graph_of(model), "", "attention") == Approx(cache + shorter_cache + 2 * rows));
}

TEST_CASE("models: groups take turns, each with a cache of its own") {
  LlamaLike model = small(Phase::kDecode);
  model.batch = 5;
  model.groups = 3;
  model.turn_tokens = 4;
  const Graph graph = graph_of(model);
  std::vector<std::string> turns;
  for (const Op& op : graph.ops) {
    const std::string group = op.name.substr(0, 7);
    if (turns.empty() || turns.back() != group) turns.push_back(group);
    for (const auto* list : {&op.reads, &op.writes}) {
      for (const StorageIndex storage : *list) {
        const Storage& used = graph.storages[storage.value()];
        if (used.kind == StorageKind::kKvCache) CHECK(used.name.substr(0, 7) == group);
      }
    }
  }
  CHECK(turns == std::vector<std::string>{"group 0", "group 1", "group 2"});
  CHECK(std::count_if(graph.ops.begin(), graph.ops.end(), [](const Op& op) {
          return op.name.find("head") != std::string::npos;
        }) == 12);
  CHECK(bytes_of(graph, StorageKind::kKvCache) == 4 * 96 * 5 * 64);

  model.groups = 4;
  std::map<std::string, std::uint64_t> caches;
  for (const Storage& storage : graph_of(model).storages) {
    if (storage.kind == StorageKind::kKvCache) caches[storage.name.substr(0, 7)] += storage.bytes;
  }
  const std::uint64_t one = 4 * 96 * 64;  // a sequence's bytes
  CHECK(caches == std::map<std::string, std::uint64_t>{
                      {"group 0", 2 * one}, {"group 1", one}, {"group 2", one}, {"group 3", one}});
}

TEST_CASE("models: with sparse attention a token reads a share of the blocks and the newest") {
  LlamaLike model = small(Phase::kDecode);
  model.block_tokens = 1;
  model.attended = 0.25;
  const Graph graph = graph_of(model);
  std::map<std::string, int> reads;
  std::set<std::string> newest;
  for (const Op& op : graph.ops) {
    const auto at = op.name.find("attention ");
    if (at == std::string::npos) continue;
    ++reads[op.name.substr(0, at)];
    if (op.name.substr(at) == "attention 95") newest.insert(op.name.substr(0, at));
  }
  CHECK(reads.size() == 4);
  CHECK(newest.size() == 4);
  for (const auto& [layer, count] : reads) CHECK(count == 24);
}

TEST_CASE("models: a share of the blocks that is a whole number is not rounded up") {
  LlamaLike model = small(Phase::kDecode);
  model.layers = 1;
  model.context = 100;
  model.block_tokens = 1;
  for (const int percent : {1, 7, 14, 28, 29, 55, 56, 57, 58, 99}) {
    model.attended = percent / 100.0;
    const Graph graph = graph_of(model);
    CHECK(std::count_if(graph.ops.begin(), graph.ops.end(), [](const Op& op) {
            return op.name.find("attention ") != std::string::npos;
          }) == percent);
  }
  model.attended = 1e-12;  // the newest one always
  CHECK(seconds(graph_of(model), "", "attention 99") > 0);
}

TEST_CASE("models: a token uses its share of the experts, and all have their turn") {
  LlamaLike model = small(Phase::kDecode);
  model.batch = 1;
  model.experts = 8;
  model.turn_tokens = 8;
  const Graph graph = graph_of(model);
  std::map<std::string, std::set<std::uint32_t>> experts;  // by token and layer
  std::set<std::uint32_t> all;
  for (const Op& op : graph.ops) {
    const auto at = op.name.find("expert ");
    if (at == std::string::npos || op.name.find("gate up") == std::string::npos) continue;
    experts[op.name.substr(0, at)].insert(op.reads.back().value());
    all.insert(op.reads.back().value());
  }
  CHECK(experts.size() == 8 * 4);
  for (const auto& [where, used] : experts) CHECK(used.size() == 2);
  CHECK(all.size() == 4 * 8);

  LlamaLike prompt = by_flops(small(Phase::kPrefill));
  prompt.experts = 8;
  // Many tokens need all experts, and each token computes with two of them.
  const double dense = seconds(graph_of(by_flops(small(Phase::kPrefill))), "", "gate up");
  CHECK(seconds(graph_of(prompt), "", "gate up") == Approx(2 * dense));
}

TEST_CASE("models: steps of all phases can be planned below their peak") {
  const Hardware hardware = test::reference_hardware("h100-node-rank");
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kTrain}) {
    for (const std::uint64_t experts : {1U, 4U}) {
      LlamaLike model = small(phase);
      model.experts = experts;
      if (phase == Phase::kPrefill) model.chunk_tokens = 40;
      if (phase == Phase::kDecode) model.turn_tokens = 3;
      const Graph graph = graph_of(model);
      CHECK(graph == graph_of(model));
      analyzer::Options options;
      options.device_budget_bytes = analyzer::peak_unmanaged_bytes(graph) * 7 / 10;
      const auto planned = analyzer::analyze(graph, hardware, options);
      INFO((planned ? "" : planned.error().message()));
      REQUIRE(planned.ok());
      CHECK(std::holds_alternative<schedule::Schedule>(*planned));
    }
  }
}

TEST_CASE("models: a step of long turns hides what its groups swap, as one of short turns does") {
  LlamaLike model;
  model.layers = 8;
  model.kv_heads = 8;
  model.feed_forward = 14336;
  model.vocab = 128256;
  model.batch = 24;
  model.context = 49400;
  model.groups = 6;
  model.turn_tokens = 16;
  const Graph graph = graph_of(model);
  const Hardware hardware = test::reference_hardware("g10");
  const auto planned = analyzer::analyze(graph, hardware, {hardware.device_bytes});
  REQUIRE(planned.ok());
  const auto& step = std::get<schedule::Schedule>(*planned).prediction;
  CHECK(step.peak_unmanaged_bytes > hardware.device_bytes);
  // The links carry it in a seventh of the step.
  CHECK(step.stall_ns < step.compute_ns / 50);
}

TEST_CASE("models: a decode step for which near homes do not fit is planned on both links") {
  // At 80 GiB no packing with all homes in near DDR fitted, and the simplest plan took 1.57.
  LlamaLike model;
  model.phase = Phase::kDecode;
  model.layers = 8;
  model.kv_heads = 8;
  model.batch = 8;
  model.groups = 4;
  model.turn_tokens = 16;
  model.context = 346'000;
  const Graph graph = graph_of(model);
  analyzer::Options options;
  options.keep_order = true;
  for (const std::uint64_t gib : {74U, 80U}) {
    options.device_budget_bytes = gib << 30U;
    const auto planned =
        analyzer::analyze(graph, test::reference_hardware("h100-node-rank"), options);
    REQUIRE(planned.ok());
    REQUIRE(std::holds_alternative<schedule::Schedule>(*planned));
    const schedule::Prediction& p = std::get<schedule::Schedule>(*planned).prediction;
    CHECK(static_cast<double>(p.step_ns) <= 1.02 * static_cast<double>(p.compute_ns));
  }
}

TEST_CASE("models: only what a forward pass of training writes anew may run again") {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kTrain}) {
    for (const Op& op : graph_of(small(phase)).ops) {
      CHECK(op.recomputable == (op.phase == "forward"));
    }
  }
}

TEST_CASE("models: sizes that make no model are refused by the name of their option") {
  const auto with = [](auto change, Phase phase = Phase::kDecode) {
    LlamaLike model = small(phase);
    change(model);
    return refusal(model);
  };
  CHECK(with([](auto& m) { m.layers = 0; }) == "--layers 0: 1 to 10000 is allowed");
  CHECK(with([](auto& m) { m.heads = 7; }) ==
        "--hidden must be a multiple of --heads, or --head-dim be given");
  CHECK(with([](auto& m) { m.kv_heads = 3; }) == "--heads must be a multiple of --kv-heads");
  CHECK(with([](auto& m) { m.groups = 4; }) == "--groups 4: 1 to 3 (--batch) is allowed");
  CHECK(with([](auto& m) { m.turn_tokens = 97; }) ==
        "--turn-tokens 97: 1 to 96 (--context) is allowed");
  CHECK(with([](auto& m) { m.attended = 0; }) == "--attended: above 0, at most 1");
  CHECK(with([](auto& m) { m.active_experts = 9, m.experts = 8; }) ==
        "--active-experts: 1 to --experts is allowed");
  CHECK(with([](auto& m) { m.chunk_tokens = 8; }) == "--chunk is for prefill");
  CHECK(with([](auto& m) { m.turn_tokens = 2; }, Phase::kTrain) ==
        "--groups and --turn-tokens are for decode");
  CHECK(with([](auto& m) { m.block_tokens = 2; }, Phase::kTrain) ==
        "--block and --attended are for prefill and decode");
  CHECK(with([](auto& m) { m.weight_bits = 5; }) == "--weight-bits 5: 4, 8 or 16 is allowed");
  CHECK(with([](auto& m) { m.kv_element_bytes = 9; }) == "--kv-element-bytes 9: 1 to 8 is allowed");
  for (const auto change :
       {+[](LlamaLike& m) { m.weight_bits = 8; }, +[](LlamaLike& m) { m.kv_element_bytes = 1; }}) {
    CHECK(with(change, Phase::kTrain) ==
          "--weight-bits and --kv-element-bytes are for prefill and decode");
  }
  const auto split = [&with](auto change) {
    return with([&change](auto& m) { m.tensor_parallel = 4, m.kv_heads = 4, change(m); });
  };
  const std::string by = " must be a multiple of the 4 ranks that split a layer (tensor parallel)";
  CHECK(split([](auto& m) { m.kv_heads = 2; }) == "--kv-heads 2" + by);
  CHECK(split([](auto& m) { m.vocab = 321; }) == "--vocab 321" + by);
  CHECK(split([](auto& m) { m.feed_forward = 130; }) == "--feed-forward 130" + by);
  CHECK(split([](auto& m) { m.tensor_parallel = 0; }) ==
        "--tensor-parallel 0: 1 or more is allowed");
  CHECK(with([](auto& m) { m.context = 1U << 30U, m.block_tokens = 1; }) ==
        "--block 1: more than 4000000 KV blocks; choose larger ones");

  LlamaLike wide = small(Phase::kTrain);
  wide.context = 1U << 30U;
  wide.batch = 1U << 20U;
  const auto too_wide = llama_like(wide);
  REQUIRE_FALSE(too_wide.ok());
  CHECK(too_wide.error().code() == Errc::kOutOfRange);
}

TEST_CASE("models: more than two million ops are refused", "[soak]") {
  LlamaLike long_turns = small(Phase::kDecode);
  long_turns.context = long_turns.turn_tokens = 1'000'000;
  const auto made = llama_like(long_turns);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code() == Errc::kOutOfRange);
}

TEST_CASE("llama-like: ranks that split each layer have its parts, and the sums of its halves") {
  LlamaLike model = small(Phase::kTrain);
  model.feed_forward = 128;
  model.flops_per_s = 1e6;  // ops take their FLOPs
  model.bytes_per_s = 1e30;
  model.network_bytes_per_s = 1e6;
  const Graph whole = graph_of(model);
  model.tensor_parallel = 2;
  const Graph half = graph_of(model);
  // All but the norms, which each rank has: two a layer and the last one.
  const std::uint64_t norms = (2 * 4 + 1) * 64 * 2;
  CHECK(2 * (bytes_of(half, StorageKind::kWeight) - norms) ==
        bytes_of(whole, StorageKind::kWeight) - norms);
  CHECK(seconds(whole, "", "all-reduce") == 0);
  CHECK(2 * (seconds(half, "") - seconds(half, "", "all-reduce")) ==
        Approx(seconds(whole, "")).epsilon(1e-4));
  // Two sums of [3 * 96, 64] in 16 bits for each layer and direction, one of the embedding and one
  // of the head's gradient, each moved once to and from a rank of two.
  CHECK(seconds(half, "", "all-reduce") == Approx((4 * 4 + 2) * 3 * 96 * 64 * 2 / 1e6));
  CHECK(bytes_of(half, StorageKind::kActivation) < bytes_of(whole, StorageKind::kActivation));

  model.tensor_parallel = 4;
  CHECK_FALSE(llama_like(model).ok());  // two heads of keys and values
}

TEST_CASE("llama-like: micro-batches sum their gradients, and a stage keeps what is under way") {
  LlamaLike model = small(Phase::kTrain);
  model.flops_per_s = 1e6;
  model.bytes_per_s = 1e30;
  const Graph once = graph_of(model);
  model.micro_batches = 4;
  const Graph in_turn = graph_of(model);
  CHECK(bytes_of(in_turn, StorageKind::kGradient) == bytes_of(once, StorageKind::kGradient));
  for (const char* const phase : {"forward", "backward"}) {
    CHECK(seconds(in_turn, phase) == Approx(4 * seconds(once, phase)).epsilon(1e-4));
  }
  CHECK(seconds(in_turn, "optimizer") == Approx(seconds(once, "optimizer")));
  const auto peak = [](const Graph& graph) { return analyzer::peak_unmanaged_bytes(graph); };
  const std::uint64_t one_pass = peak(in_turn);
  std::uint64_t last = one_pass;
  for (const std::uint64_t in_flight : {2U, 3U, 4U}) {
    model.in_flight = in_flight;
    const std::uint64_t more = peak(graph_of(model));
    CHECK(more > last);
    last = more;
  }
  model.in_flight = 9;
  CHECK(peak(graph_of(model)) == last);
  // Gradients are summed over ranks beside the last backward pass.
  model.data_parallel = 2;
  CHECK(seconds(graph_of(model), "", "all-reduce") == 0);
  model.network_bytes_per_s = 1;
  CHECK(seconds(graph_of(model), "", "gradients all-reduce") ==
        Approx(static_cast<double>(bytes_of(once, StorageKind::kGradient)) -
               seconds(once, "backward")));
  // Passes of a pipeline's other stages, which its bubble consists of, are as long as without it.
  CHECK(seconds(graph_of(model), "backward") == Approx(seconds(in_turn, "backward")));
  model.phase = Phase::kPrefill;
  CHECK_FALSE(llama_like(model).ok());
}
