#include "tools/examples/gpt/generation.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "tools/compare/resident.hpp"
#include "tools/compare/resident_passes.hpp"
#include "tools/examples/gpt/kernels.hpp"

namespace ho::gpt {
namespace {

Prompt prompt(const std::string& text) {
  Prompt tokens;
  for (const char letter : text) tokens.push_back(static_cast<unsigned char>(letter));
  return tokens;
}

const std::vector<Prompt> kPrompts = {prompt("hello"), prompt("a somewhat longer prompt"),
                                      prompt("x"), prompt("block of 8"), prompt("the last one")};

GenerationOptions options_for(std::uint32_t batch, std::uint32_t groups) {
  GenerationOptions options;
  options.decoder.model =
      ModelOptions{.layers = 2, .dim = 32, .heads = 4, .batch = batch, .seed = 7};
  options.decoder.block_rows = 8;
  options.decoder.groups = groups;
  options.decoder.model.seq = cache_rows(kPrompts, 20, 8);
  options.new_tokens = 20;
  options.slice_tokens = 3;
  return options;
}

Generation run(const GenerationOptions& options, const std::vector<Prompt>& prompts = kPrompts) {
  use_one_blas_thread();
  const auto passes = ResidentPasses::create(options.decoder).value();
  return generate(options, prompts, *passes, [] { return false; }).value();
}

/// Computes the likeliest next token with the forward half of a training step over the whole text.
class Recompute {
 public:
  explicit Recompute(ModelOptions options) {
    options.batch = 1;
    model_ = build_model(options).value();
    resident_ = Resident::create(model_).value();
    for (const Storage& storage : model_.graph.storages) {
      if (!storage.persistent) continue;
      std::vector<std::byte> value(storage.bytes);
      initial_value(model_, StorageIndex(storage.id), value);
      REQUIRE(resident_->fill(StorageIndex(storage.id), value).ok());
    }
  }

  std::int32_t next(const std::vector<std::int32_t>& text) {
    std::vector<std::int32_t> tokens(model_.options.seq, 0);
    std::copy(text.begin(), text.end(), tokens.begin());
    const std::size_t bytes = tokens.size() * sizeof(tokens[0]);
    std::memcpy(resident_->operand(0, model_.tokens), tokens.data(), bytes);
    StepContext context = step_context(model_, 0);
    std::size_t op = 0;
    do {
      std::vector<void*> operands;
      for (const StorageIndex s : model_.ops[op].operands) {
        operands.push_back(resident_->operand(0, s));
      }
      model_.ops[op].kernel(operands, context);
    } while (model_.graph.ops[op++].name != "head");
    const auto* const logits =
        static_cast<const float*>(resident_->operand(0, model_.ops[op - 1].operands[2])) +
        (text.size() - 1) * kVocabulary;
    return static_cast<std::int32_t>(std::max_element(logits, logits + kVocabulary) - logits);
  }

 private:
  Model model_;
  std::unique_ptr<Resident> resident_;
};

TEST_CASE("generation: the KV cache gives the tokens of recomputing the whole text each time") {
  const Generation made = run(options_for(2, 1));
  Recompute whole(options_for(2, 1).decoder.model);
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    INFO("prompt " << i);
    std::vector<std::int32_t> text = kPrompts[i];
    REQUIRE(made.tokens[i].size() == 20);
    for (const std::int32_t token : made.tokens[i]) {
      REQUIRE(token == whole.next(text));
      text.push_back(token);
    }
  }
}

TEST_CASE("generation: tokens do not depend on batch, groups, slices or the size of blocks") {
  for (const double temperature : {0.0, 0.7}) {
    GenerationOptions alone = options_for(1, 1);
    alone.temperature = temperature;
    const auto tokens = run(alone).tokens;
    for (const auto& [batch, groups, block] :
         {std::tuple(2U, 2U, 8U), {5U, 1U, 1U}, {3U, 3U, 64U}}) {
      INFO("batch " << batch << " groups " << groups << " temperature " << temperature);
      GenerationOptions options = options_for(batch, groups);
      options.temperature = temperature;
      options.decoder.block_rows = block;
      options.decoder.model.seq = cache_rows(kPrompts, 20, block);
      REQUIRE(run(options).tokens == tokens);
    }
  }
}

TEST_CASE("generation: sampling depends on the seed and differs from the likeliest tokens") {
  GenerationOptions options = options_for(2, 1);
  const auto greedy = run(options).tokens;
  options.temperature = 1.0;
  const auto sampled = run(options).tokens;
  REQUIRE(sampled != greedy);
  // At a temperature near 0 sampling chooses the likeliest token.
  options.temperature = 1e-6;
  REQUIRE(run(options).tokens == greedy);
}

TEST_CASE("generation: a waiting prompt takes the place of a sequence that ends") {
  GenerationOptions options = options_for(2, 1);
  const std::vector<Prompt> prompts = {prompt("hello"), prompt("second"), prompt("xy")};
  const Generation all = run(options, prompts);
  REQUIRE(all.prefill_ms.size() ==
          2);  // the first two in one block; the third when both have ended
  options.stop = all.tokens[0][4];
  REQUIRE(std::count(all.tokens[1].begin(), all.tokens[1].begin() + 8, *options.stop) == 0);
  const Generation made = run(options, prompts);
  CHECK(made.prefill_ms.size() == 1);
  CHECK(made.decode_ms.size() < all.decode_ms.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::vector<std::int32_t> expected = all.tokens[i];
    const auto end = std::find(expected.begin(), expected.end(), *options.stop);
    if (end != expected.end()) expected.erase(end + 1, expected.end());
    CHECK(made.tokens[i] == expected);
  }
}

TEST_CASE("generation: a pass writes only to the open block") {
  const DecoderOptions options = options_for(2, 2).decoder;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const Model model = build_pass(options, {phase, 1, 3}).value();
    std::vector<std::string> written;
    std::size_t blocks = 0;
    for (const Storage& storage : model.graph.storages) {
      blocks += storage.kind == StorageKind::kKvCache ? 1 : 0;
    }
    for (const Op& op : model.graph.ops) {
      for (const StorageIndex s : op.writes) {
        const Storage& storage = model.graph.storages[s.value()];
        if (storage.persistent) written.push_back(storage.name);
      }
    }
    CHECK(blocks == 6);
    CHECK(written == std::vector<std::string>{"group1.layer0.kv2", "group1.layer1.kv2"});
  }
}

TEST_CASE("generation: a stop request ends it between passes") {
  const GenerationOptions options = options_for(2, 1);
  const auto passes = ResidentPasses::create(options.decoder).value();
  int asked = 0;
  const auto made = generate(options, kPrompts, *passes, [&] { return ++asked > 3; });
  REQUIRE_FALSE(made.ok());
  REQUIRE(made.error().code() == Errc::kCanceled);
}

}  // namespace
}  // namespace ho::gpt
