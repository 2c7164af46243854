// The flags that describe a sandbox and an exec, and what they mean.
//
// Every refusal is a UsageError that names the flag.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "ipc/agent.pb.h"

namespace cordon::cli {

// As the user wrote them; "" = not given, checked by the functions below.
struct LimitFlags {
  CLI::Option* memory = nullptr;
  CLI::Option* pids = nullptr;
  CLI::Option* cpus = nullptr;
  CLI::Option* cpuTime = nullptr;
  CLI::Option* wall = nullptr;
  CLI::Option* fileSize = nullptr;
  CLI::Option* files = nullptr;
  CLI::Option* disk = nullptr;
  CLI::Option* tmp = nullptr;
  CLI::Option* shm = nullptr;
  CLI::Option* output = nullptr;
  CLI::Option* root = nullptr;

  // Those of a sandbox; all of them.
  void addTo(CLI::App& command);
  // Those that an exec may narrow.
  void addExecTo(CLI::App& command);
  // What was given, as the API's message. 0 and less is refused here.
  cordon::v1::Limits message() const;
  bool any() const;
};

struct SandboxFlags {
  std::string runtime, image, hostname, seccomp, snapshot;
  bool explain = false;  // only `acquire` has the flag: `run` takes the exec's
  CLI::Option* ttl = nullptr;
  CLI::Option* idle = nullptr;
  LimitFlags limits;

  void addTo(CLI::App& command);
  cordon::v1::SandboxSpec message() const;
};

struct ExecFlags {
  std::vector<std::string> env;
  std::string cwd, user;
  bool noStdin = false, explain = false, interactive = false, json = false;

  void addTo(CLI::App& command);
  // argv and everything but limits and stdin.
  cordon::v1::ExecSpec message(const std::vector<std::string>& argv) const;
};

// Text for a field of the API that must be UTF-8.
const std::string& utf8(const std::string& text, const char* what);

// NAME.TOKEN, as far as its form goes.
const std::string& sandboxId(const std::string& text);
const std::string& snapshotId(const std::string& text);

}  // namespace cordon::cli
