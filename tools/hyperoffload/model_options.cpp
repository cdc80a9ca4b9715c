#include "tools/hyperoffload/model_options.hpp"

#include <limits>
#include <map>

#include "common/cli/values.hpp"

namespace ho::cli {

namespace {

const std::map<std::string, models::Phase>& phases() {
  static const std::map<std::string, models::Phase> known = {{"prefill", models::Phase::kPrefill},
                                                             {"decode", models::Phase::kDecode},
                                                             {"train", models::Phase::kTrain}};
  return known;
}

}  // namespace

std::vector<CLI::Option*> add_model_options(CLI::App& command, ModelWords& words) {
  models::LlamaLike& model = words.model;
  std::vector<CLI::Option*> options;
  options.push_back(command.add_option("--phase", words.phase, "prefill, decode or train")
                        ->type_name("NAME")
                        ->check(CLI::IsMember({"prefill", "decode", "train"})));
  const auto add = [&](const char* name, std::uint64_t& into, const char* help) {
    options.push_back(command.add_option(name, into, help)->type_name("N"));
    if (into != 0) options.back()->capture_default_str();
  };
  add("--layers", model.layers, "layers");
  add("--hidden", model.hidden, "width of the residual stream");
  add("--heads", model.heads, "attention heads");
  add("--kv-heads", model.kv_heads, "heads of keys and values, which others share");
  add("--feed-forward", model.feed_forward,
      "width of the feed-forward part (default: 8/3 of the hidden width, in whole 256)");
  add("--vocab", model.vocab, "tokens of the vocabulary");
  add("--experts", model.experts, "feed-forward parts a layer, of which a token uses some");
  add("--active-experts", model.active_experts, "those that each token uses");
  add("--batch", model.batch, "sequences");
  add("--element-bytes", model.element_bytes, "bytes of a weight, activation or cache element");
  add("--chunk", model.chunk_tokens,
      "prefill: tokens of one pass through the layers (default: all)");
  add("--block", model.block_tokens,
      "tokens of a KV block, which moves as one (default: one or more chunks; an eighth of the "
      "context when decoding)");
  add("--groups", model.groups, "decode: groups of sequences that take turns");
  add("--turn-tokens", model.turn_tokens, "decode: tokens that each sequence gets in its turn");
  options.push_back(command
                        .add_option("--attended", model.attended,
                                    "share of the KV blocks that a token attends to")
                        ->type_name("SHARE")
                        ->capture_default_str());
  const Bounds<double> any{1, std::numeric_limits<double>::max()};
  options.push_back(
      add_flops(command, "--device-flops", model.flops_per_s,
                "what the device attains; an op takes the longer of this and its bytes", any));
  options.push_back(add_rate(command, "--device-bandwidth", model.bytes_per_s,
                             "what device memory attains", any));
  return options;
}

models::LlamaLike model_of(const ModelWords& words) {
  models::LlamaLike model = words.model;
  model.phase = phases().at(words.phase);
  return model;
}

}  // namespace ho::cli
