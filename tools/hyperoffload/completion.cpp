#include <memory>
#include <string>

#include "common/cli/completion.hpp"
#include "common/text/json.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

void add_completion(Program& program) {
  auto shell = std::make_shared<std::string>();
  const CLI::App& root = program.root();
  CLI::App& command = program.add(
      program.root(), "completion", "Print a script that completes this program's words",
      [shell, &root](Console& console) {
        const std::string script = *shell == "zsh" ? zsh_completion(root) : bash_completion(root);
        if (console.json()) {
          JsonWriter json;
          json.begin_object().field("shell", *shell).field("script", script);
          console.print(std::move(json.end()).text());
        } else {
          console.print(script);
        }
        return kExitDone;
      });
  command.add_option("SHELL", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  set_manual(command, {"Debian's package installs both scripts. Elsewhere, for this shell only, "
                       "evaluate what the command prints.",
                       {"eval \"$(hyperoffload completion bash)\""},
                       {{kExitDone, "printed"}}});
}

}  // namespace ho::cli
