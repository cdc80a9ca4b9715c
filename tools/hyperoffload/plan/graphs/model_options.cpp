#include "tools/hyperoffload/plan/graphs/model_options.hpp"

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

/// Adds an option for a number, which may be 0 where that is the default.
CLI::Option* add_number(CLI::App& command, const char* name, std::uint64_t& into, const char* help,
                        std::uint64_t most) {
  return add_count(command, name, into, help, {into == 0 ? 0U : 1U, most});
}

}  // namespace

std::vector<CLI::Option*> add_model_sizes(CLI::App& command, models::LlamaLike& model) {
  const Bounds<double> any{1, 1e18};
  std::vector<CLI::Option*> options = {
      add_number(command, "--layers", model.layers, "layers", models::kLayersMax),
      add_number(command, "--hidden", model.hidden, "width of the residual stream",
                 models::kWidthMax),
      add_number(command, "--heads", model.heads, "attention heads", models::kWidthMax),
      add_number(command, "--kv-heads", model.kv_heads,
                 "heads of keys and values, which others share", models::kWidthMax),
      add_number(command, "--head-dim", model.head_dim,
                 "width of a head (default: the hidden width / heads)", models::kWidthMax),
      add_number(command, "--feed-forward", model.feed_forward,
                 "width of the feed-forward part (default: 8/3 of the hidden width, in whole 256)",
                 models::kFeedForwardMax),
      add_number(command, "--vocab", model.vocab, "tokens of the vocabulary", models::kVocabMax),
      command.add_flag("--tied-embeddings", model.tied_embeddings,
                       "the output matrix is the embedding"),
      add_number(command, "--experts", model.experts,
                 "feed-forward parts a layer, of which a token uses some: all in turn, known ahead",
                 models::kExpertsMax),
      add_number(command, "--active-experts", model.active_experts, "those that each token uses",
                 models::kExpertsMax),
      add_number(command, "--element-bytes", model.element_bytes,
                 "bytes of a weight, activation or cache element", models::kElementBytesMax),
      add_flops(command, "--device-flops", model.flops_per_s,
                "what the device attains; an op takes the longer of this and its bytes", any),
      add_rate(command, "--device-bandwidth", model.bytes_per_s, "what device memory attains",
               any)};
  command.get_option("--active-experts")->needs("--experts");
  return options;
}

std::vector<CLI::Option*> add_model_options(CLI::App& command, ModelWords& words) {
  models::LlamaLike& model = words.model;
  std::vector<CLI::Option*> options = {
      command.add_option("--phase", words.phase, "prefill, decode or train")
          ->type_name("NAME")
          ->check(CLI::IsMember({"prefill", "decode", "train"}))};
  for (CLI::Option* const size : add_model_sizes(command, model)) options.push_back(size);
  options.push_back(add_number(command, "--batch", model.batch, "sequences", models::kWidthMax));
  options.push_back(add_number(command, "--chunk", model.chunk_tokens,
                               "prefill: tokens of one pass through the layers (default: all)",
                               models::kTokensMax));
  options.push_back(add_number(
      command, "--block", model.block_tokens,
      "tokens of a KV block, which moves as one (default: one or more chunks; an eighth of the "
      "context when decoding)",
      models::kTokensMax));
  options.push_back(add_number(command, "--groups", model.groups,
                               "decode: groups of sequences that take turns", models::kWidthMax));
  options.push_back(add_number(command, "--turn-tokens", model.turn_tokens,
                               "decode: tokens that each sequence gets in its turn (default: 1; "
                               "with experts, as many as use each of them)",
                               models::kTokensMax));
  options.push_back(command
                        .add_option("--weight-bits", model.weight_bits,
                                    "bits of a weight: 4, 8 or 16 (default: those of an element)")
                        ->type_name("N")
                        ->check(CLI::IsMember({4, 8, 16})));
  options.push_back(add_number(command, "--kv-element-bytes", model.kv_element_bytes,
                               "bytes of a cache element (default: --element-bytes)",
                               models::kElementBytesMax));
  options.push_back(
      add_number(command, "--tensor-parallel", model.tensor_parallel,
                 "ranks that split each layer; the graph is one's part, with its all-reduces",
                 models::kWidthMax));
  options.push_back(add_rate(command, "--network", model.network_bytes_per_s,
                             "a rank's network, each way, for all-reduces", {1, 1e18}));
  options.push_back(
      add_part(command, "--attended", model.attended,
               "share of the KV blocks so far, whole ones, that each token attends to, such as "
               "0.25 or 25%: evenly spread, the newest always; others stay in the pool")
          ->default_str("1"));
  return options;
}

void warn_of_unused_experts(Console& console, const models::LlamaLike& model) {
  const std::uint64_t unused = models::unused_experts(model);
  if (unused == 0) return;
  console.note("warning: no token of a step uses " + std::to_string(unused) + " of the " +
               std::to_string(model.experts) +
               " experts of a layer, and steps repeat: these experts take no time and no device "
               "memory; --turn-tokens " +
               std::to_string(models::default_turn_tokens(model)) +
               " uses all, with a context as long");
}

models::LlamaLike model_of(const ModelWords& words) {
  models::LlamaLike model = words.model;
  model.phase = phases().at(words.phase);
  return model;
}

}  // namespace ho::cli
