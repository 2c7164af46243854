#include <iostream>

#include "frontend/cli/command.h"
#include "frontend/cli/flags.h"
#include "frontend/cli/render.h"
#include "frontend/verdict/escape.h"

namespace cordon::cli {
namespace {

class AcquireCommand : public Command {
 public:
  const char* name() const override { return "acquire"; }
  const char* summary() const override {
    return "create a sandbox that lives until `release` or its time to live, and print its id";
  }
  const char* examples() const override {
    return "  ID=$(cordon acquire --runtime runc --memory 256M --ttl 1h)\n"
           "  cordon acquire --json --idle 10m\n"
           "The id is NAME.TOKEN: who has it may use the sandbox; keep it secret.";
  }
  void define(CLI::App& app) override {
    sandbox.addTo(app);
    app.add_flag("--explain", sandbox.explain,
                 "make it for `exec --explain`: nothing is missing from its lists then");
    app.add_flag("--json", asJson, "one JSON object: id and what the sandbox was given");
  }
  bool json() const override { return asJson; }

  int run(const std::vector<std::string>&) override {
    v1::AcquireResponse response =
        client::Client(client::agentsAddress()).acquire(sandbox.message());
    if (asJson) {
      std::cout << line({{"id", response.id()}, {"sandbox", toJson(response.sandbox())}});
    } else {
      std::cout << verdict::escapeControls(response.id()) << "\n";
    }
    return 0;
  }

 private:
  SandboxFlags sandbox;
  bool asJson = false;
};

}  // namespace

std::unique_ptr<Command> makeAcquireCommand() {
  return std::make_unique<AcquireCommand>();
}

}  // namespace cordon::cli
