#include <iostream>

#include "frontend/cli/command.h"
#include "frontend/cli/render.h"

namespace cordon::cli {
namespace {

class RuntimesCommand : public Command {
 public:
  const char* name() const override { return "runtimes"; }
  const char* summary() const override {
    return "show what this host can run, and where it can't, why and how to fix it";
  }
  const char* examples() const override {
    return "  cordon runtimes\n"
           "  cordon runtimes --json";
  }
  void define(CLI::App& app) override { app.add_flag("--json", asJson, "one JSON object"); }
  bool json() const override { return asJson; }

  int run(const std::vector<std::string>&) override {
    v1::RuntimesResponse runtimes = client::Client(client::agentsAddress()).runtimes();
    std::cout << (asJson ? line(toJson(runtimes)) : table(runtimes));
    return 0;
  }

 private:
  bool asJson = false;
};

}  // namespace

std::unique_ptr<Command> makeRuntimesCommand() {
  return std::make_unique<RuntimesCommand>();
}

}  // namespace cordon::cli
