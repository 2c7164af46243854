#include "frontend/cli/flags.h"

#include <cstdint>
#include <optional>

#include "broker/limit_text.h"
#include "frontend/cli/failure.h"
#include "frontend/verdict/escape.h"

namespace cordon::cli {
namespace {

using broker::ParsedAmount;
using Parser = ParsedAmount (*)(std::string_view);

// A flag whose text is parsed later, so that all refusals read alike.
CLI::Option* textFlag(CLI::App& command, const char* name, const char* type, const char* help) {
  return command
      .add_option_function<std::string>(
          name, [](const std::string&) {}, help)
      ->type_name(type)
      ->expected(1)
      ->group("Limits");
}

std::string textOf(const CLI::Option& option) {
  return option.results().empty() ? "" : option.results().back();
}

[[noreturn]] void refuse(const CLI::Option& option, const std::string& why) {
  throw UsageError(option.get_name() + " " + textOf(option) + ": " + why);
}

// The amount of a flag that was given; above 0 and within the API's range.
std::optional<int64_t> amount(const CLI::Option* option, Parser parse) {
  if (option == nullptr || option->count() == 0) return std::nullopt;
  std::string text = textOf(*option);
  if (text.starts_with("-")) refuse(*option, "a limit can't be negative");
  ParsedAmount parsed = parse(text);
  if (!parsed) refuse(*option, parsed.error);
  if (parsed.value == 0) refuse(*option, "a limit of 0 would stop everything; leave the flag out");
  if (parsed.value > uint64_t(INT64_MAX)) refuse(*option, "too large");
  return int64_t(parsed.value);
}

}  // namespace

void LimitFlags::addTo(CLI::App& command) {
  memory = textFlag(command, "--memory", "BYTES",
                    "memory of all processes and scratch files, e.g. 128M");
  pids = textFlag(command, "--pids", "N", "processes and threads at once, e.g. 64");
  cpus = textFlag(command, "--cpus", "N", "CPU rate, e.g. 0.5 (half a CPU)");
  disk = textFlag(command, "--disk", "BYTES", "size of /work, e.g. 64M");
  tmp = textFlag(command, "--tmp", "BYTES", "size of /tmp");
  shm = textFlag(command, "--shm", "BYTES", "size of /dev/shm");
  root = textFlag(command, "--writable-root", "BYTES",
                  "let the root be written to, so much, until the sandbox ends, e.g. 64M");
  addExecTo(command);
}

void LimitFlags::addExecTo(CLI::App& command) {
  cpuTime =
      textFlag(command, "--cpu-time", "TIME", "CPU time of one exec, all its processes, e.g. 2s");
  wall = textFlag(command, "--wall", "TIME", "wall clock of one exec, e.g. 5s");
  fileSize =
      textFlag(command, "--file-size", "BYTES", "largest file a process may write, e.g. 100M");
  files = textFlag(command, "--files", "N", "open files per process, e.g. 256");
  output = textFlag(command, "--output", "BYTES", "cap on stdout and on stderr, each, e.g. 1M");
}

v1::Limits LimitFlags::message() const {
  v1::Limits limits;
  if (auto value = amount(memory, broker::parseBytes)) limits.set_memory_bytes(*value);
  if (auto value = amount(pids, broker::parseCount)) limits.set_pids(*value);
  if (auto value = amount(cpus, broker::parseCpus)) limits.set_cpu_millis(*value);
  if (auto value = amount(cpuTime, broker::parseDuration)) limits.set_cpu_time_ms(*value);
  if (auto value = amount(wall, broker::parseDuration)) limits.set_wall_ms(*value);
  if (auto value = amount(fileSize, broker::parseBytes)) limits.set_file_size_bytes(*value);
  if (auto value = amount(files, broker::parseCount)) limits.set_files(*value);
  if (auto value = amount(disk, broker::parseBytes)) limits.set_disk_bytes(*value);
  if (auto value = amount(tmp, broker::parseBytes)) limits.set_tmp_bytes(*value);
  if (auto value = amount(shm, broker::parseBytes)) limits.set_shm_bytes(*value);
  if (auto value = amount(output, broker::parseBytes)) limits.set_output_bytes(*value);
  if (auto value = amount(root, broker::parseBytes)) limits.set_root_bytes(*value);
  return limits;
}

bool LimitFlags::any() const {
  for (const CLI::Option* option :
       {memory, pids, cpus, cpuTime, wall, fileSize, files, disk, tmp, shm, output, root}) {
    if (option != nullptr && option->count() > 0) return true;
  }
  return false;
}

void SandboxFlags::addTo(CLI::App& command) {
  command
      .add_option("--runtime", runtime,
                  "runc, host, ...; default: the service's (see `cordon runtimes`)")
      ->type_name("NAME");
  command.add_option("--image", image, "default: host-usr, a view of this machine's /usr")
      ->type_name("NAME");
  command.add_option("--hostname", hostname, "the sandbox's host name")->type_name("NAME");
  command
      .add_option("--seccomp", seccomp,
                  "system calls that programs may make: default, tuned (Python, shell) or build "
                  "(compilers, git, asyncio)")
      ->type_name("NAME");
  command
      .add_option(
          "--snapshot", snapshot,
          "start with the files of this snapshot, and as its sandbox was where no flag says "
          "otherwise")
      ->type_name("ID");
  limits.addTo(command);
  ttl = textFlag(command, "--ttl", "TIME", "the sandbox is destroyed so long after its creation");
  idle = textFlag(command, "--idle", "TIME", "... or after so long without an exec");
}

v1::SandboxSpec SandboxFlags::message() const {
  v1::SandboxSpec spec;
  spec.set_runtime(utf8(runtime, "--runtime"));
  spec.set_image(utf8(image, "--image"));
  spec.set_hostname(utf8(hostname, "--hostname"));
  spec.set_seccomp(utf8(seccomp, "--seccomp"));
  spec.set_explain(explain);
  if (!snapshot.empty()) spec.set_snapshot(snapshotId(snapshot));
  if (limits.any()) *spec.mutable_limits() = limits.message();
  if (auto value = amount(ttl, broker::parseDuration)) spec.set_ttl_ms(*value);
  if (auto value = amount(idle, broker::parseDuration)) spec.set_idle_ms(*value);
  return spec;
}

void ExecFlags::addTo(CLI::App& command) {
  // One value each time: what follows may be the program.
  command.add_option("--env", env, "an environment variable; repeatable")
      ->type_name("K=V")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("--cwd", cwd, "working directory; default /work")->type_name("DIR");
  command.add_option("--user", user, "NAME, UID or UID:GID inside the sandbox")->type_name("NAME");
  command.add_flag("--interactive", interactive, "pass standard input on also from a terminal");
  command.add_flag("--no-stdin", noStdin, "the program's standard input is /dev/null");
  command.add_flag("--explain", explain,
                   "list the system calls that the seccomp profile refused, with their counts");
  command.add_flag("--json", json, "one JSON object with output, verdict, usage and timings");
}

v1::ExecSpec ExecFlags::message(const std::vector<std::string>& argv) const {
  if (argv.empty()) throw UsageError("there is no program to run; e.g. `-- python3 -c 'print(1)'`");
  v1::ExecSpec spec;
  for (const std::string& argument : argv) spec.add_argv(argument);
  for (const std::string& variable : env) {
    size_t equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw UsageError("--env " + variable + ": must be NAME=VALUE");
    }
    spec.add_env(variable);
  }
  spec.set_cwd(cwd);
  spec.set_explain(explain);
  spec.set_user(utf8(user, "--user"));
  return spec;
}

const std::string& utf8(const std::string& text, const char* what) {
  if (!verdict::isUtf8(text)) throw UsageError(std::string(what) + " is not UTF-8");
  return text;
}

const std::string& sandboxId(const std::string& text) {
  size_t dot = text.find('.');
  if (dot == std::string::npos || dot == 0 || dot + 1 == text.size()) {
    throw UsageError("a sandbox's id is NAME.TOKEN, as `cordon acquire` printed it");
  }
  return utf8(text, "the sandbox's id");
}

const std::string& snapshotId(const std::string& text) {
  size_t dot = text.find('.');
  if (dot == std::string::npos || dot == 0 || dot + 1 == text.size()) {
    throw UsageError("a snapshot's id is NAME.TOKEN, as `cordon snapshot` printed it");
  }
  return utf8(text, "the snapshot's id");
}

}  // namespace cordon::cli
