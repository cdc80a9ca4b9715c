#include <limits>
#include <map>
#include <memory>
#include <string>

#include "common/base/json.hpp"
#include "common/cli/layout.hpp"
#include "proto/convert.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/graph_facts.hpp"
#include "tools/models/llama_like.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  models::LlamaLike model;
  std::string phase;
  std::string out;
};

const std::map<std::string, models::Phase>& phases() {
  static const std::map<std::string, models::Phase> known = {{"prefill", models::Phase::kPrefill},
                                                             {"decode", models::Phase::kDecode},
                                                             {"train", models::Phase::kTrain}};
  return known;
}

int run(Console& console, Arguments& args) {
  args.model.phase = phases().at(args.phase);
  const auto graph = models::llama_like(args.model);
  if (!graph) return console.refuse(graph.error());
  if (auto written = write_graph_file(*graph, args.out); !written) {
    return console.refuse(written.error());
  }
  if (console.json()) {
    JsonWriter json;
    json.begin_object();
    write_graph(json, *graph);
    json.field("written", args.out).end();
    console.print(std::move(json).text());
    return kExitDone;
  }
  console.print(graph_facts(*graph).add("written", args.out).text(console.format()));
  return kExitDone;
}

void add_sizes(CLI::App& command, models::LlamaLike& model) {
  const auto add = [&command](const char* name, std::uint64_t& into, const char* help) {
    CLI::Option* const option = command.add_option(name, into, help)->type_name("N");
    if (into != 0) option->capture_default_str();
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
  add("--context", model.context,
      "tokens per sequence: prompt, cache at the step's end, or training sequence");
  add("--batch", model.batch, "sequences");
  add("--element-bytes", model.element_bytes, "bytes of a weight, activation or cache element");
  add("--chunk", model.chunk_tokens,
      "prefill: tokens of one pass through the layers (default: all)");
  add("--block", model.block_tokens,
      "tokens of a KV block, which moves as one (default: the chunk; an eighth when decoding)");
  add("--groups", model.groups, "decode: groups of sequences that take turns");
  add("--turn-tokens", model.turn_tokens, "decode: tokens that each sequence gets in its turn");
}

}  // namespace

void add_model(Program& program) {
  CLI::App& group =
      program.add_group("model", "Make a graph from the description of a known kind of model");
  auto args = std::make_shared<Arguments>();
  CLI::App& command = program.add(group, "llama-like",
                                  "A decoder with grouped-query attention and SwiGLU, or experts",
                                  [args](Console& console) { return run(console, *args); });
  command.add_option("--phase", args->phase, "prefill, decode or train")
      ->type_name("NAME")
      ->required()
      ->check(CLI::IsMember({"prefill", "decode", "train"}));
  add_sizes(command, args->model);
  command
      .add_option("--attended", args->model.attended,
                  "share of the KV blocks that a token attends to")
      ->type_name("SHARE")
      ->capture_default_str();
  const Bounds<double> any{1, std::numeric_limits<double>::max()};
  add_flops(command, "--device-flops", args->model.flops_per_s,
            "what the device attains; an op takes the longer of this and its bytes", any);
  add_rate(command, "--device-bandwidth", args->model.bytes_per_s, "what device memory attains",
           any);
  command.add_option("--out", args->out, "the graph to write: .json, .textproto or .pb")
      ->type_name("FILE")
      ->required();
  set_manual(command,
             {"",
              {"hyperoffload model llama-like --phase decode --context 131072 --batch 8 \\",
               "    --groups 4 --turn-tokens 128 --out decode.pb",
               "hyperoffload model llama-like --phase train --layers 80 --hidden 8192 \\",
               "    --heads 64 --kv-heads 8 --feed-forward 28672 --out train.pb"},
              {{kExitDone, "written"}}});
}

}  // namespace ho::cli
