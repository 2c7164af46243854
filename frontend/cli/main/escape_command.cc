#include "escape_suite/runner.h"
#include "frontend/cli/main/suites.h"

namespace cordon::cli {
namespace {

class EscapeCommand : public Command {
 public:
  const char* name() const override { return "escape"; }
  const char* summary() const override {
    return "send hostile programs into sandboxes and show what became of them";
  }
  const char* examples() const override {
    return "  cordon escape\n"
           "  cordon escape --runtime host --json\n"
           "  cordon escape --only fork --only read_shadow\n"
           "  cordon escape --list --extended\n"
           "The exit status is 0 when everything was contained, 1 when not, 125 when the suite "
           "could\n"
           "not run.";
  }
  void define(CLI::App& app) override {
    app.add_option("--runtime", options.runtime, "default: the service's")->type_name("NAME");
    app.add_option("--image", options.image, "default: the service's")->type_name("NAME");
    app.add_option("--only", options.only, "this program; repeatable")
        ->type_name("PROGRAM")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_flag("--extended", options.extended, "the extended set besides the thirteen");
    app.add_option("--connect-address", options.connectAddresses,
                   "an address of this machine to listen on besides the loopback; repeatable")
        ->type_name("IP")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_option("--programs", options.programs, "the binary of the hostile programs")
        ->type_name("PATH");
    app.add_flag("--list", options.list, "print the programs and their aims, run nothing");
    app.add_flag("--json", options.json, "one JSON object");
  }
  bool json() const override { return options.json; }

  int run(const std::vector<std::string>&) override { return escape::runEscape(options); }

 private:
  escape::EscapeOptions options;
};

}  // namespace

std::unique_ptr<Command> makeEscapeCommand() {
  return std::make_unique<EscapeCommand>();
}

}  // namespace cordon::cli
