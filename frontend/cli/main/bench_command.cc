#include <iostream>

#include "frontend/bench/bench.h"
#include "frontend/cli/failure.h"
#include "frontend/cli/main/suites.h"

namespace cordon::cli {
namespace {

class BenchCommand : public Command {
 public:
  const char* name() const override { return "bench"; }
  const char* summary() const override {
    return "measure the promised figures on this machine, each beside its baseline";
  }
  const char* examples() const override {
    return "  cordon bench\n"
           "  cordon bench --only exec --samples 300\n"
           "  cordon bench --json\n"
           "  cordon bench --only steps --log up.log       # of `cordon up ... 2> up.log`\n"
           "  cordon bench --only cycles --cycles 10000\n"
           "The exit status is 1 when a target was missed or could not be measured.";
  }
  void define(CLI::App& app) override {
    std::string groups = "only this group; repeatable:";
    for (const std::string& group : bench::groupNames()) groups += " " + group;
    app.add_option("--only", options.only, groups)
        ->type_name("GROUP")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->check(CLI::IsMember(bench::groupNames()));
    app.add_option("--samples", options.samples, "of each row of times")
        ->type_name("N")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app.add_option("--cycles", options.cycles,
                   "so many sandboxes one after another, with what the kernel holds meanwhile")
        ->type_name("N");
    app.add_option("--log", options.log,
                   "what `cordon up` writes to standard error: the cost of each step is in it")
        ->type_name("FILE")
        ->check(CLI::ExistingFile);
    app.add_option("--output-bytes", options.outputBytes, "how much the output row moves")
        ->type_name("N")
        ->check(CLI::Range(1.0, 1e15))
        ->capture_default_str();
    app.add_option("--runc", options.runc, "default: the first in the usual places")
        ->type_name("PATH");
    app.add_option("--libexec", options.libexec, "default: beside this program")->type_name("DIR");
    app.add_flag("--json", asJson, "one JSON object");
  }
  bool json() const override { return asJson; }

  int run(const std::vector<std::string>&) override {
    bench::Report report =
        bench::measure(options, [](std::string_view line) { std::cerr << line << std::endl; });
    std::cout << (asJson ? bench::asJson(report) : bench::asTable(report));
    return bench::allMet(report) ? 0 : kNotClean;
  }

 private:
  bench::Options options;
  bool asJson = false;
};

}  // namespace

std::unique_ptr<Command> makeBenchCommand() {
  return std::make_unique<BenchCommand>();
}

}  // namespace cordon::cli
