#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

#include "jailer/capabilities.h"
#include "jailer/core_scheduling.h"
#include "jailer/rlimits.h"
#include "jailer/seccomp_load.h"
#include "jailer/steps.h"

namespace cordon::jailer {

namespace {

// What a program is left with, in its user namespace.
using Capabilities = std::initializer_list<int>;

Capabilities capabilitiesOf(Program program) {
  // To start programs under other ids, and to end them.
  static constexpr Capabilities kAgent = {CAP_KILL, CAP_SETGID, CAP_SETUID};
  // To read what any inside id owns.
  static constexpr Capabilities kSaver = {CAP_DAC_READ_SEARCH};
  // To make files of any inside id, with their modes, in anyone's directories.
  static constexpr Capabilities kRestorer = {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID};
  switch (program) {
    case Program::AGENT:
      return kAgent;
    case Program::SAVER:
      return kSaver;
    case Program::RESTORER:
      return kRestorer;
  }
  fail(Step::kIdentity, EINVAL);
}

void keepCapabilities(Capabilities keep) {
  uint64_t kept = 0;
  for (int capability : keep) kept |= capabilityBit(capability);
  require(Step::kIdentity, keepInBoundingSet(kept) ? 0 : -1);
  require(Step::kIdentity, setCapabilities({kept, kept, kept}) ? 0 : -1);
  // Through the exec: the program isn't root.
  require(Step::kIdentity, raiseAmbient(kept) ? 0 : -1);
}

}  // namespace

void setHostname(JailSpec::Reader spec) {
  auto name = spec.getHostname();
  require(Step::kHostname, sethostname(name.cStr(), name.size()));
}

void setLimits(JailSpec::Reader spec) {
  require(Step::kLimits, lowerLimit(RLIMIT_NOFILE, spec.getFiles()) ? 0 : -1);
  require(Step::kLimits, refuseCores() ? 0 : -1);
  if (spec.getFileBytes() != 0) {
    require(Step::kLimits, lowerLimit(RLIMIT_FSIZE, spec.getFileBytes()) ? 0 : -1);
  }
}

void isolateCore(JailSpec::Reader spec) {
  if (!spec.getCoreScheduling()) return;
  unsigned long cookie = 0;
  if (int error = takeCoreCookie(cookie)) fail(Step::kLimits, error);
  noteCoreCookie(cookie);
}

void becomeUnprivileged(JailSpec::Reader spec, const Prepared& prepared) {
  // All capabilities in it, and none outside any more.
  require(Step::kIdentity, setns(prepared.user, CLONE_NEWUSER));
  require(Step::kIdentity, syscall(SYS_setgroups, 0, nullptr));
  gid_t gid = spec.getAgentGid();
  uid_t uid = spec.getAgentUid();
  require(Step::kIdentity, syscall(SYS_setresgid, gid, gid, gid));
  // Capabilities stay: the id that is given up is not the namespace's root.
  require(Step::kIdentity, syscall(SYS_setresuid, uid, uid, uid));
  keepCapabilities(capabilitiesOf(spec.getProgram()));
  require(Step::kIdentity, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

void installFilter() {
  if (int error = loadFilter(kFilterFd)) fail(Step::kFilter, error);
}

void execProgram(JailSpec::Reader spec) {
  bool agent = spec.getProgram() == Program::AGENT;
  const char* argv[] = {agent ? "vm-agent" : "cordon-copier", nullptr};
  const char* env[] = {"PATH=/usr/bin:/bin", nullptr};
  syscall(SYS_execveat, kAgentFd, "", argv, env, AT_EMPTY_PATH);
  fail(Step::kExec, -1);
}

}  // namespace cordon::jailer
