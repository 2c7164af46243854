#include <iostream>

#include "frontend/cli/clock.h"
#include "frontend/cli/command.h"
#include "frontend/cli/flags.h"
#include "frontend/cli/render.h"

namespace cordon::cli {
namespace {

class SnapshotsCommand : public Command {
 public:
  const char* name() const override { return "snapshots"; }
  const char* summary() const override {
    return "list your own snapshots, without their tokens, or delete one";
  }
  const char* examples() const override {
    return "  cordon snapshots\n"
           "  cordon snapshots --json\n"
           "  cordon snapshots --delete \"$SNAP\"";
  }
  void define(CLI::App& app) override {
    app.add_option("--delete", id, "delete this one: NAME.TOKEN, as `cordon snapshot` printed it")
        ->type_name("ID");
    app.add_flag("--json", asJson, "one JSON object");
  }
  bool json() const override { return asJson; }

  int run(const std::vector<std::string>&) override {
    client::Client client(client::agentsAddress());
    if (!id.empty()) {
      client.deleteSnapshot(snapshotId(id));
      if (asJson) std::cout << line({{"deleted", id.substr(0, id.find('.'))}});
      return 0;
    }
    v1::ListSnapshotsResponse list = client.snapshots();
    std::cout << (asJson ? line(toJson(list)) : table(list, nowUnixMs()));
    return 0;
  }

 private:
  std::string id;
  bool asJson = false;
};

}  // namespace

std::unique_ptr<Command> makeSnapshotsCommand() {
  return std::make_unique<SnapshotsCommand>();
}

}  // namespace cordon::cli
