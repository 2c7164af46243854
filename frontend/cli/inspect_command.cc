#include <iostream>

#include "frontend/cli/clock.h"
#include "frontend/cli/command.h"
#include "frontend/cli/flags.h"
#include "frontend/cli/render.h"

namespace cordon::cli {
namespace {

class InspectCommand : public Command {
 public:
  const char* name() const override { return "inspect"; }
  const char* summary() const override {
    return "show a sandbox: what it is made of, limits, counters, time left";
  }
  const char* examples() const override {
    return "  cordon inspect \"$ID\"\n"
           "  cordon inspect --json \"$ID\"";
  }
  void define(CLI::App& app) override {
    app.add_option("ID", id, "NAME.TOKEN, as `cordon acquire` printed it")->required();
    app.add_flag("--json", asJson, "one JSON object");
  }
  bool json() const override { return asJson; }

  int run(const std::vector<std::string>&) override {
    v1::SandboxInfo info = client::Client(client::agentsAddress()).inspect(sandboxId(id));
    std::cout << (asJson ? line(toJson(info)) : card(info, nowUnixMs()));
    return 0;
  }

 private:
  std::string id;
  bool asJson = false;
};

}  // namespace

std::unique_ptr<Command> makeInspectCommand() {
  return std::make_unique<InspectCommand>();
}

}  // namespace cordon::cli
