#include <string>

#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/graphs/graph_facts.hpp"
#include "tools/hyperoffload/plan/graphs/model_options.hpp"

namespace ho::cli {

namespace {

struct ModelArguments {
  ModelWords words;
  std::string out;
};

int run_model(Console& console, const ModelArguments& args) {
  const models::LlamaLike model = model_of(args.words);
  const auto graph = models::llama_like(model);
  if (!graph) return console.refuse(graph.error());
  if (auto written = write_graph_file(*graph, args.out); !written) {
    return console.refuse(written.error());
  }
  warn_of_unused_experts(console, model);
  if (console.json()) {
    JsonWriter json;
    json.begin_object();
    write_graph(json, *graph);
    json.field("unused_experts", models::unused_experts(model));
    json.field("written", args.out).end();
    console.print(std::move(json).text());
    return kExitDone;
  }
  console.print(graph_facts(*graph).add("written", args.out).text(console.format()));
  return kExitDone;
}

}  // namespace

void add_model(Program& program) {
  CLI::App& group =
      program.add_group("model", "Make a graph from the description of a known kind of model");
  auto [command, args] = add_command<ModelArguments>(
      program, group, "llama-like", "A decoder with grouped-query attention and SwiGLU, or experts",
      run_model);
  add_model_options(command, args.words).front()->required();
  add_count(command, "--context", args.words.model.context,
            "tokens per sequence: prompt, cache at the step's end, or training sequence",
            {1, models::kTokensMax});
  command.add_option("--out", args.out, "the graph to write: .json, .textproto or .pb")
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
