#include "frontend/cli/command.h"
#include "frontend/cli/failure.h"
#include "frontend/cli/up/supervisor.h"

namespace cordon::cli {
namespace {

// "0660", octal whether it begins with 0 or not.
mode_t socketMode(const std::string& text) {
  size_t used = 0;
  unsigned long mode = 0;
  try {
    mode = std::stoul(text, &used, 8);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != text.size() || text.empty() || mode > 0777) {
    throw UsageError("--agents-mode " + text + ": must be an octal file mode such as 0660");
  }
  return mode_t(mode);
}

class UpCommand : public Command {
 public:
  const char* name() const override { return "up"; }
  const char* summary() const override {
    return "serve an instance in the foreground: broker and frontends, sockets below --state";
  }
  const char* examples() const override {
    return "  cordon up --state /run/cordon-test &          # as root; prints `ready`\n"
           "  CORDON_AGENTS=/run/cordon-test/agents.sock cordon run -- uname -a\n"
           "  cordon up --state /run/cordon-test --images /srv/images --agents-group 1000\n"
           "  cordon up --state ~/cordon --allow-host-runtime    # without root: no sandbox at "
           "all\n"
           "SIGTERM and SIGINT destroy everything it made, and it exits 0.";
  }
  void define(CLI::App& app) override {
    app.add_option("--state", options.state, "directory of sockets and records; made when missing")
        ->type_name("DIR")
        ->required();
    app.add_option("--images", options.images, "directories below DIR may be images; repeatable")
        ->type_name("DIR")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_flag("--allow-host-runtime", options.allowHostRuntime,
                 "offer `host`, which is no sandbox: a private instance of one trust zone, all "
                 "under the invoking user");
    app.add_option("--agents-uid", options.agentsUid, "uid and gid of the agents' frontend")
        ->type_name("N")
        ->check(CLI::Range(1u, 4294967294u))
        ->capture_default_str();
    app.add_option("--agents-mode", mode, "mode of agents.sock; 0600 in one trust zone")
        ->type_name("MODE")
        ->capture_default_str();
    app.add_option("--agents-group", options.agentsGroup, "group that may use agents.sock")
        ->type_name("GID")
        ->capture_default_str();
    app.add_option("--default-runtime", options.defaultRuntime,
                   "of a sandbox that names none; default jail, never host")
        ->type_name("NAME");
    app.add_option("--runc", options.runc, "the runc to use")->type_name("PATH");
    app.add_option("--vm-agent", options.vmAgent, "default: beside the broker")->type_name("PATH");
    app.add_option("--id-span", options.idSpan, "host ids for sandboxes")->type_name("FIRST:COUNT");
    app.add_option("--id-registry", options.idRegistry, "claims on id ranges, of all instances")
        ->type_name("DIR");
    app.add_option("--cgroup-base", options.cgroupBase, "cordon's subtree; default /cordon")
        ->type_name("PATH");
    app.add_option("--max-sandboxes", options.maxSandboxes, "at once")->type_name("N");
    app.add_option("--max-per-owner", options.maxPerOwner, "at once for one user")->type_name("N");
    app.add_option("--snapshots", options.snapshots,
                   "where snapshots are kept; default DIR/broker/snapshots")
        ->type_name("DIR");
    app.add_option("--max-snapshots", options.maxSnapshots, "kept in all")->type_name("N");
    app.add_option("--max-snapshots-per-owner", options.maxSnapshotsPerOwner, "of one user")
        ->type_name("N");
    app.add_option("--snapshot-bytes", options.snapshotBytes, "of all of them on the disk")
        ->type_name("N");
    app.add_option("--snapshot-bytes-per-owner", options.snapshotBytesPerOwner, "of one user's")
        ->type_name("N");
    app.add_option("--libexec", options.libexec, "where cordon-broker and the others lie")
        ->type_name("DIR");
  }

  int run(const std::vector<std::string>&) override {
    options.agentsMode = socketMode(mode);
    return up::serve(options);
  }

 private:
  up::UpOptions options;
  std::string mode = "0660";
};

}  // namespace

std::unique_ptr<Command> makeUpCommand() {
  return std::make_unique<UpCommand>();
}

}  // namespace cordon::cli
