#include <iostream>

#include "frontend/cli/clock.h"
#include "frontend/cli/command.h"
#include "frontend/cli/render.h"

namespace cordon::cli {
namespace {

class ListCommand : public Command {
 public:
  const char* name() const override { return "ls"; }
  const char* summary() const override { return "list your own sandboxes, without their tokens"; }
  const char* examples() const override {
    return "  cordon ls\n"
           "  cordon ls --json";
  }
  void define(CLI::App& app) override { app.add_flag("--json", asJson, "one JSON object"); }
  bool json() const override { return asJson; }

  int run(const std::vector<std::string>&) override {
    v1::ListResponse list = client::Client(client::agentsAddress()).list();
    std::cout << (asJson ? line(toJson(list)) : table(list, nowUnixMs()));
    return 0;
  }

 private:
  bool asJson = false;
};

}  // namespace

std::unique_ptr<Command> makeListCommand() {
  return std::make_unique<ListCommand>();
}

}  // namespace cordon::cli
