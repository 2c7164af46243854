// The subcommands of `cordon`, one file each.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cordon::cli {

class Command {
 public:
  virtual ~Command() = default;

  virtual const char* name() const = 0;
  virtual const char* summary() const = 0;
  // What a user would type, a line each.
  virtual const char* examples() const = 0;
  // Adds the flags to the subcommand's own parser.
  virtual void define(CLI::App& app) = 0;

  // For a command that ends with a program's argv: how many words of its own
  // come before it.
  virtual std::optional<size_t> wordsBeforeProgram() const { return std::nullopt; }

  // Does it and returns the exit status. Throws UsageError, client::ApiError.
  virtual int run(const std::vector<std::string>& program) = 0;

  // Whether errors are wanted as JSON on standard output, too.
  virtual bool json() const { return false; }
};

std::unique_ptr<Command> makeUpCommand();
std::unique_ptr<Command> makeRunCommand();
std::unique_ptr<Command> makeAcquireCommand();
std::unique_ptr<Command> makeExecCommand();
std::unique_ptr<Command> makeReleaseCommand();
std::unique_ptr<Command> makeInspectCommand();
std::unique_ptr<Command> makeListCommand();
std::unique_ptr<Command> makeSnapshotCommand();
std::unique_ptr<Command> makeSnapshotsCommand();
std::unique_ptr<Command> makeRuntimesCommand();

// The command line as a whole: parses, runs the subcommand, prints its errors.
// Returns the exit status.
int runCommandLine(std::vector<std::unique_ptr<Command>> commands,
                   const std::vector<std::string>& words);

}  // namespace cordon::cli
