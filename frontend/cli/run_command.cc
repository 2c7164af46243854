#include "frontend/cli/command.h"
#include "frontend/cli/session.h"

namespace cordon::cli {
namespace {

class RunCommand : public Command {
 public:
  const char* name() const override { return "run"; }
  const char* summary() const override {
    return "run one program in a sandbox of its own, destroyed afterwards";
  }
  const char* examples() const override {
    return "  cordon run [FLAGS] [--] PROGRAM [ARGUMENTS]\n"
           "  cordon run -- python3 -c 'print(6 * 7)'\n"
           "  echo hello | cordon run tr a-z A-Z\n"
           "  cordon run --memory 128M --pids 64 --cpu-time 2s --wall 5s python3 -c 'x = \"x\" * "
           "(1 << 30)'\n"
           "  cordon run --seccomp tuned --explain python3 -c 'import socket; socket.socket()'\n"
           "  cordon run --json --env LANG=C.UTF-8 --cwd /tmp -- sh -c 'pwd; exit 3'\n"
           "The exit status is the program's: 128 + N when signal N killed it, 126 and 127 when "
           "it\n"
           "could not be started, 125 for cordon's own errors.";
  }
  void define(CLI::App& app) override {
    exec.addTo(app);
    sandbox.addTo(app);
  }
  std::optional<size_t> wordsBeforeProgram() const override { return 0; }
  bool json() const override { return exec.json; }

  int run(const std::vector<std::string>& program) override {
    v1::SandboxSpec sandboxSpec = sandbox.message();
    v1::ExecSpec execSpec = exec.message(program);
    return serve(exec, [&](const client::Streams& streams) {
      return client::Client(client::agentsAddress()).run(sandboxSpec, execSpec, streams);
    });
  }

 private:
  SandboxFlags sandbox;
  ExecFlags exec;
};

}  // namespace

std::unique_ptr<Command> makeRunCommand() {
  return std::make_unique<RunCommand>();
}

}  // namespace cordon::cli
