#include <iostream>

#include "frontend/cli/command.h"
#include "frontend/cli/failure.h"
#include "frontend/cli/flags.h"
#include "frontend/cli/render.h"
#include "frontend/verdict/escape.h"

namespace cordon::cli {
namespace {

// What a user without --json should know besides the id.
void sayWhatIsMissing(const v1::SnapshotInfo& info) {
  auto say = [](uint32_t count, const char* what) {
    if (count > 0) std::cerr << "cordon: not in the snapshot: " << count << what << "\n";
  };
  say(info.skipped_sockets(), " sockets");
  say(info.skipped_devices(), " devices");
  say(info.without_xattrs(), " files' extended attributes");
}

class SnapshotCommand : public Command {
 public:
  const char* name() const override { return "snapshot"; }
  const char* summary() const override {
    return "keep what a sandbox has written, and print the snapshot's id";
  }
  const char* examples() const override {
    return "  SNAP=$(cordon snapshot \"$ID\")\n"
           "  cordon run --snapshot \"$SNAP\" -- ls /work\n"
           "It holds /work, /tmp and, with --writable-root, what was changed or removed in the "
           "root.\n"
           "The id is NAME.TOKEN: who has it may use the snapshot; keep it secret.";
  }
  void define(CLI::App& app) override {
    app.add_option("ID", id, "NAME.TOKEN, as `cordon acquire` printed it")->required();
    app.add_flag("--json", asJson, "one JSON object: id and what the snapshot holds");
  }
  bool json() const override { return asJson; }

  int run(const std::vector<std::string>&) override {
    v1::SnapshotResponse response = client::Client(client::agentsAddress()).snapshot(sandboxId(id));
    if (asJson) {
      std::cout << line({{"id", response.id()}, {"snapshot", toJson(response.snapshot())}});
    } else {
      std::cout << verdict::escapeControls(response.id()) << "\n";
      sayWhatIsMissing(response.snapshot());
    }
    return 0;
  }

 private:
  std::string id;
  bool asJson = false;
};

}  // namespace

std::unique_ptr<Command> makeSnapshotCommand() {
  return std::make_unique<SnapshotCommand>();
}

}  // namespace cordon::cli
