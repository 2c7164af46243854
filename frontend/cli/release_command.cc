#include <iostream>

#include "frontend/cli/command.h"
#include "frontend/cli/failure.h"
#include "frontend/cli/flags.h"
#include "frontend/cli/render.h"

namespace cordon::cli {
namespace {

class ReleaseCommand : public Command {
 public:
  const char* name() const override { return "release"; }
  const char* summary() const override {
    return "destroy a sandbox and print the receipt of what was removed";
  }
  const char* examples() const override {
    return "  cordon release \"$ID\"\n"
           "  cordon release --json \"$ID\"\n"
           "The exit status is 1 when something could not be removed.";
  }
  void define(CLI::App& app) override {
    app.add_option("ID", id, "NAME.TOKEN, as `cordon acquire` printed it")->required();
    app.add_flag("--json", asJson, "the receipt as one JSON object");
  }
  bool json() const override { return asJson; }

  int run(const std::vector<std::string>&) override {
    v1::Receipt receipt = client::Client(client::agentsAddress()).release(sandboxId(id));
    std::cout << (asJson ? line(toJson(receipt)) : text(receipt));
    return receipt.complete() ? 0 : kNotClean;
  }

 private:
  std::string id;
  bool asJson = false;
};

}  // namespace

std::unique_ptr<Command> makeReleaseCommand() {
  return std::make_unique<ReleaseCommand>();
}

}  // namespace cordon::cli
