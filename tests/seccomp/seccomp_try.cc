// Shows the seccomp profiles and tries programs under them, without a sandbox.
//
//   seccomp-try calls PROFILE                        the calls that pass, one a line
//   seccomp-try table PROFILE                        the table of docs/seccomp.md
//   seccomp-try run PROFILE [--without CALL|--absent CALL]... -- PROGRAM [ARGUMENT]...
//   seccomp-try time PROFILE [RUNS]                  what loading it costs, as JSON
//
// A call taken away by --without answers EPERM, as one that is not listed does;
// by --absent ENOSYS.
#include <kj/debug.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "jailer/seccomp.h"
#include "jailer/seccomp_profile.h"

namespace cordon::jailer {
namespace {

using Arguments = std::vector<std::string>;
using Filter = std::vector<sock_filter>;

constexpr size_t kRuns = 300;

Filter programOf(const CompiledProfile& profile) {
  Filter filter(profile.instructions);
  size_t bytes = filter.size() * sizeof(sock_filter);
  ssize_t got;
  KJ_SYSCALL(got = pread(profile.bpf, filter.data(), bytes, 0));
  KJ_REQUIRE(static_cast<size_t>(got) == bytes, "short read of the profile");
  return filter;
}

void load(Filter& filter) {
  sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  KJ_SYSCALL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

int showCalls(const Profile& profile) {
  for (const SyscallGroup& group : profile.allowed) {
    for (const char* call : group.calls) puts(call);
  }
  return 0;
}

std::string conditionOf(const SyscallGroup& group) {
  std::string text;
  char one[96];
  for (const ArgMatch& match : group.whenAnyOf) {
    const char* join = text.empty() ? "" : ", ";
    if (match.mask == kLow32 || match.mask == kAll64) {
      snprintf(one, sizeof one, "%sargument %u = %#llx", join, match.index,
               static_cast<unsigned long long>(match.value));
    } else {
      snprintf(one, sizeof one, "%sargument %u & %#llx = %#llx", join, match.index,
               static_cast<unsigned long long>(match.mask),
               static_cast<unsigned long long>(match.value));
    }
    text += one;
  }
  return text;
}

std::string alsoOf(const AlsoArgument& also) {
  if (also.index < 0) return "";
  char text[96];
  const char* is = also.differs ? "is not" : "=";
  if (also.mask == kLow32) {
    snprintf(text, sizeof text, " and argument %d %s %#x", also.index, is, also.value);
  } else {
    snprintf(text, sizeof text, " and argument %d & %#x %s %#x", also.index, also.mask, is,
             also.value);
  }
  return text;
}

void showGroups(const std::vector<SyscallGroup>& groups, const char* answer) {
  for (const SyscallGroup& group : groups) {
    std::string calls;
    for (const char* call : group.calls) calls += (calls.empty() ? "" : " ") + std::string(call);
    std::string condition = conditionOf(group);
    printf("| %s | %s%s%s | %s |\n", calls.c_str(), answer, condition.empty() ? "" : " when ",
           condition.c_str(), group.reason);
  }
}

int showTable(const Profile& profile) {
  puts("| calls | answer | reason |\n|---|---|---|");
  showGroups(profile.allowed, "passes");
  for (const RefusedArgument& refused : profile.refusedArguments) {
    std::string unless;
    if (refused.unlessZero >= 0) {
      unless = ", unless argument " + std::to_string(refused.unlessZero) + " = 0";
    }
    printf("| %s | EPERM when argument %u = %#x%s%s | %s |\n", refused.call, refused.index,
           refused.value, unless.c_str(), alsoOf(refused.also).c_str(), refused.reason);
  }
  for (const SyscallGroup& group : profile.absent) {
    showGroups({group}, strerrorname_np(group.error));
  }
  showGroups(profile.refused, "EPERM");
  return 0;
}

int run(const std::string& name, const Arguments& rest) {
  Profile profile = profileNamed(name);
  size_t at = 0;
  for (; at + 1 < rest.size() && (rest[at] == "--without" || rest[at] == "--absent"); at += 2) {
    profile = without(std::move(profile), rest[at + 1]);
    if (rest[at] == "--absent") profile.absent.push_back({"for a try", {rest[at + 1].c_str()}});
  }
  KJ_REQUIRE(at + 1 < rest.size() && rest[at] == "--", "no program");
  std::vector<char*> argv;
  for (size_t i = at + 1; i < rest.size(); ++i) argv.push_back(const_cast<char*>(rest[i].c_str()));
  argv.push_back(nullptr);
  CompiledProfile compiled = compileProfile(name, profile);
  Filter filter = programOf(compiled);
  KJ_SYSCALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  load(filter);
  execv(argv[0], argv.data());
  _exit(127);
}

double microseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// In a child each time: a filter can't be taken off again.
int timeLoading(const std::string& name, size_t runs) {
  CompiledProfile compiled = compileProfile(name);
  Filter filter = programOf(compiled);
  void* shared =
      mmap(nullptr, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  KJ_REQUIRE(shared != MAP_FAILED);
  auto* took = static_cast<double*>(shared);
  std::vector<double> all;
  for (size_t i = 0; i < runs; ++i) {
    pid_t child;
    KJ_SYSCALL(child = fork());
    if (child == 0) {
      prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
      double start = microseconds();
      load(filter);
      *took = microseconds() - start;
      _exit(0);
    }
    int status;
    KJ_SYSCALL(waitpid(child, &status, 0));
    KJ_REQUIRE(status == 0, "a load failed", status);
    all.push_back(*took);
  }
  std::sort(all.begin(), all.end());
  printf(
      "{\"profile\": \"%s\", \"calls\": %zu, \"instructions\": %zu, \"median_us\": %.1f, "
      "\"p99_us\": %.1f}\n",
      name.c_str(), compiled.allowedCalls, compiled.instructions, all[all.size() / 2],
      all[all.size() * 99 / 100]);
  return 0;
}

int tryIt(const Arguments& arguments) {
  KJ_REQUIRE(arguments.size() >= 2, "usage: seccomp-try calls|table|run|time PROFILE ...");
  const std::string& verb = arguments[0];
  const std::string& name = arguments[1];
  Arguments rest(arguments.begin() + 2, arguments.end());
  if (verb == "calls") return showCalls(profileNamed(name));
  if (verb == "table") return showTable(profileNamed(name));
  if (verb == "run") return run(name, rest);
  if (verb == "time") return timeLoading(name, rest.empty() ? kRuns : std::stoul(rest[0]));
  KJ_FAIL_REQUIRE("no such verb", verb.c_str());
}

}  // namespace
}  // namespace cordon::jailer

int main(int argc, char** argv) {
  return cordon::jailer::tryIt({argv + 1, argv + argc});
}
