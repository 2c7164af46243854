// Checks a request wholly before anything is done for it, and puts it into the
// form that the broker and vm-agent take. Pure functions; any thread.
//
// A check that fails throws Refused: it carries the CallError to answer with.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "frontend/agents/errors.h"
#include "ipc/agent.pb.h"
#include "ipc/broker.capnp.h"

namespace cordon::agents {

struct Refused {
  CallError error;
};

// 0 = not given. Fields as in rpc::Limits.
struct LimitValues {
  uint64_t memoryBytes = 0, pids = 0, cpuMillis = 0, cpuTimeMs = 0, wallMs = 0, fileSizeBytes = 0,
           files = 0, diskBytes = 0, tmpBytes = 0, shmBytes = 0, outputBytes = 0, rootBytes = 0;
};
LimitValues fromRpc(rpc::Limits::Reader limits);
void toRpc(const LimitValues& limits, rpc::Limits::Builder out);

struct SandboxPlan {
  std::string runtime, image, hostname, seccomp;
  std::string snapshot;  // NAME.TOKEN; "" = none
  LimitValues limits;
  uint64_t ttlMs = 0, idleMs = 0;
  bool explain = false;
};

void fillSpec(const SandboxPlan& plan, rpc::SandboxSpec::Builder out);

struct ExecPlan {
  std::vector<std::string> argv, env;  // env complete with defaults, see environment()
  std::string cwd, user;
  bool withStdin = false, explain = false;
  LimitValues limits;  // the five per-exec kinds; 0 = the sandbox's
};

struct SandboxId {
  std::string name, token;
};

// "NAME.TOKEN"; BAD_ID.
SandboxId parseId(const std::string& id);
// Likewise, of a snapshot.
SandboxId parseSnapshotId(const std::string& id, const char* field = "id");
// Where a page of a listing begins, and how long it is: BAD_PAGE_SIZE,
// BAD_PAGE_TOKEN.
struct PagePlan {
  std::string after;
  uint32_t most = 0;
};
PagePlan planPage(const v1::ListRequest& request);
SandboxPlan planSandbox(const v1::SandboxSpec& spec);
ExecPlan planExec(const v1::ExecSpec& spec);

// Each of the exec's limits must be at most the sandbox's: EXEC_LIMIT_TOO_WIDE.
void requireNarrower(const LimitValues& exec, const LimitValues& sandbox);

// The environment of the program: what was given, and for the keys that are
// absent PATH, LANG, USER (when a user was named) and HOME=/work; on `host`
// HOME is the cwd where one was given, and USER is left out.
std::vector<std::string> environment(const ExecPlan& plan, bool hostRuntime);

}  // namespace cordon::agents
