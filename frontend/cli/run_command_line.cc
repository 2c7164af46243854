#include <cstdio>
#include <iostream>

#include "frontend/cli/command.h"
#include "frontend/cli/command_line.h"
#include "frontend/cli/failure.h"
#include "frontend/cli/render.h"
#include "frontend/verdict/escape.h"

namespace cordon::cli {
namespace {

void print(FILE* stream, const std::string& text) {
  fwrite(text.data(), 1, text.size(), stream);
  fflush(stream);
}

int fail(const Command& command, const Json& json, const std::string& text) {
  if (command.json()) print(stdout, line(json));
  print(stderr, "cordon: " + text + "\n");
  return kOwnError;
}

int runCommand(Command& command, const std::vector<std::string>& program) {
  try {
    return command.run(program);
  } catch (const client::ApiError& error) {
    return fail(command, toJson(error), text(error));
  } catch (const UsageError& error) {
    Json json = {
        {"error", {{"code", "INVALID_ARGUMENT"}, {"reason", "USAGE"}, {"message", error.what()}}}};
    return fail(command, json, verdict::escapeControls(error.what()));
  } catch (const std::exception& error) {
    Json json = {
        {"error", {{"code", "INTERNAL"}, {"reason", "FAILED"}, {"message", error.what()}}}};
    return fail(command, json, verdict::escapeControls(error.what()));
  }
}

}  // namespace

int runCommandLine(std::vector<std::unique_ptr<Command>> commands,
                   const std::vector<std::string>& words) {
  CLI::App app(
      "cordon runs programs of AI agents in sandboxes, and says which control stopped them and "
      "which counter shows it.",
      "cordon");
  app.set_version_flag("--version", "cordon 0.1.0");
  app.require_subcommand(1);
  app.footer(
      "`cordon COMMAND --help` shows a command's flags and examples.\n"
      "CORDON_AGENTS names the service's socket; default /run/cordon/agents.sock.");
  for (auto& command : commands) {
    CLI::App* sub = app.add_subcommand(command->name(), command->summary());
    sub->footer(std::string("Examples:\n") + command->examples());
    command->define(*sub);
  }

  Command* chosen = nullptr;
  for (auto& command : commands) {
    if (!words.empty() && words.front() == command->name()) chosen = command.get();
  }
  SplitLine split{words, {}};
  if (chosen != nullptr && chosen->wordsBeforeProgram()) {
    split = splitAtProgram(*app.get_subcommand(chosen->name()), {words.begin() + 1, words.end()},
                           *chosen->wordsBeforeProgram());
    split.ours.insert(split.ours.begin(), words.front());
  }
  try {
    // CLI11 takes the words from the back.
    app.parse(std::vector<std::string>(split.ours.rbegin(), split.ours.rend()));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kOwnError;
  }
  // CLI11 takes no word for a command but those that were looked for above.
  return chosen == nullptr ? kOwnError : runCommand(*chosen, split.program);
}

}  // namespace cordon::cli
