#include "frontend/cli/command.h"
#include "frontend/cli/session.h"

namespace cordon::cli {
namespace {

class ExecCommand : public Command {
 public:
  const char* name() const override { return "exec"; }
  const char* summary() const override { return "run a program in a sandbox that was acquired"; }
  const char* examples() const override {
    return "  cordon exec [FLAGS] ID [FLAGS] [--] PROGRAM [ARGUMENTS]\n"
           "  ID=$(cordon acquire --memory 256M)\n"
           "  cordon exec \"$ID\" -- python3 -c 'open(\"/work/note\", \"w\").write(\"kept\")'\n"
           "  cordon exec --wall 2s \"$ID\" cat /work/note\n"
           "  cordon exec --json \"$ID\" -- sh -c 'exit 3'\n"
           "The limits given here can only narrow the sandbox's. The exit status is as of `cordon "
           "run`.";
  }
  void define(CLI::App& app) override {
    app.add_option("ID", id, "NAME.TOKEN, as `cordon acquire` printed it")->required();
    exec.addTo(app);
    limits.addExecTo(app);
  }
  std::optional<size_t> wordsBeforeProgram() const override { return 1; }
  bool json() const override { return exec.json; }

  int run(const std::vector<std::string>& program) override {
    v1::ExecSpec spec = exec.message(program);
    if (limits.any()) *spec.mutable_limits() = limits.message();
    sandboxId(id);
    return serve(exec, [&](const client::Streams& streams) {
      return client::Client(client::agentsAddress()).exec(id, spec, streams);
    });
  }

 private:
  std::string id;
  ExecFlags exec;
  LimitFlags limits;
};

}  // namespace

std::unique_ptr<Command> makeExecCommand() {
  return std::make_unique<ExecCommand>();
}

}  // namespace cordon::cli
