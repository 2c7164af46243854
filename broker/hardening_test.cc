#include "broker/hardening.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>

#include "broker/testing_child.h"

namespace cordon::broker {
namespace {

// In a child, since it is for good. Returns what `body` reports, "" = fine.
std::string hardened(const std::function<std::string(const Hardened&)>& body, uid_t uid = 0) {
  return testing::inChild([&]() -> std::string {
    if (uid != 0 && setresuid(uid, uid, uid) != 0) return "setresuid";
    return body(hardenBroker());
  });
}

std::string statusLine(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size() + 1, key + ":") == 0) return line.substr(key.size() + 2);
  }
  return "(none)";
}

uint64_t bitOf(const std::string& name) {
  cap_value_t c = 0;
  EXPECT_EQ(cap_from_name(name.c_str(), &c), 0) << name;
  return uint64_t{1} << c;
}

// As /proc/PID/status has it.
std::string hexOf(uint64_t set) {
  char hex[32];
  snprintf(hex, sizeof(hex), "%016lx", static_cast<unsigned long>(set));
  return hex;
}

class Hardening : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "there are no capabilities to drop without root";
  }
};

TEST_F(Hardening, LeavesExactlyTheListedCapabilitiesAlsoToChildren) {
  EXPECT_EQ(hardened([](const Hardened& h) -> std::string {
              uint64_t effective = 0;
              for (auto& name : h.capabilities) effective |= bitOf(name);
              uint64_t permitted = effective;
              for (auto& name : h.forRuntimes) permitted |= bitOf(name);
              if (statusLine("CapEff") != hexOf(effective)) return "CapEff";
              for (const char* set : {"CapPrm", "CapBnd"}) {
                if (statusLine(set) != hexOf(permitted)) return set;
              }
              for (const char* set : {"CapInh", "CapAmb"}) {
                if (statusLine(set) != std::string(16, '0')) return set;
              }
              size_t named = h.capabilities.size() + h.missing.size() + h.forRuntimes.size();
              size_t most = keptCapabilities().size() + runtimeCapabilities().size();
              if (named < keptCapabilities().size() || named > most) {
                return "a capability is unaccounted for";
              }
              // After an exec by root: all that is permitted.
              std::string check = "grep -q 'CapEff:." + hexOf(permitted) + "' /proc/self/status";
              return system(check.c_str()) == 0 ? "" : "a child has others";
            }),
            "");
}

TEST_F(Hardening, TheProcessIsClosed) {
  EXPECT_EQ(hardened([](const Hardened& h) -> std::string {
              if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return "no_new_privs";
              if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) return "dumpable";
              rlimit core{};
              getrlimit(RLIMIT_CORE, &core);
              if (h.coreLimitUsable && (core.rlim_cur != 1 || core.rlim_max != 1)) return "core";
              if (!h.root) return "root";
              return "";
            }),
            "");
}

TEST_F(Hardening, RefusesTheCallsOfTheListAndNoOther) {
  EXPECT_EQ(hardened([](const Hardened& h) -> std::string {
              if (h.refusedCalls < 30) return "few rules: " + std::to_string(h.refusedCalls);
              // Arguments that would fail otherwise without any effect, with
              // another errno.
              if (syscall(SYS_delete_module, "", 0) != -1 || errno != EPERM) return "delete_module";
              if (syscall(SYS_reboot, 0, 0, 0, nullptr) != -1 || errno != EPERM) return "reboot";
              if (syscall(SYS_swapoff, nullptr) != -1 || errno != EPERM) return "swapoff";
              if (syscall(SYS_open_by_handle_at, -1, nullptr, 0) != -1 || errno != EPERM) {
                return "open_by_handle_at";
              }
              if (syscall(SYS_perf_event_open, nullptr, 0, 0, -1, 0) != -1 || errno != EPERM) {
                return "perf_event_open";
              }
              // x32: the same number with the bit set.
              if (syscall(0x40000000 | SYS_delete_module, "", 0) != -1 ||
                  (errno != EPERM && errno != ENOSYS)) {
                return "delete_module by x32";
              }
              // And the broker's own work goes on.
              if (fork() == 0) _exit(0);
              int status;
              if (wait(&status) < 0) return "wait";
              if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID) != 0) return "unshare";
              return "";
            }),
            "");
}

#ifdef __x86_64__
TEST_F(Hardening, TheIa32EntryIsFilteredToo) {
  EXPECT_EQ(hardened([](const Hardened&) -> std::string {
              // int $0x80 with eax = 129 (delete_module of i386), a null name.
              long result;
              asm volatile("int $0x80"
                           : "=a"(result)
                           : "0"(129L), "b"(0L), "c"(0L)
                           : "memory", "r8", "r9", "r10", "r11");
              if (result == -EPERM || result == -ENOSYS) return "";
              return "answered " + std::to_string(result);
            }),
            "");
}
#endif

TEST_F(Hardening, UnprivilegedItIsNoNewPrivsAndDumpable) {
  EXPECT_EQ(hardened(
                [](const Hardened& h) -> std::string {
                  if (h.root || !h.capabilities.empty()) return "root";
                  if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return "no_new_privs";
                  if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) return "dumpable";
                  if (statusLine("Seccomp_filters") != "0") return "a filter";
                  return "";
                },
                1000),
            "");
}

TEST(HardeningLists, EveryEntryHasAReasonAndIsNamedOnce) {
  for (auto list : {keptCapabilities(), refusedCalls()}) {
    std::vector<std::string> names;
    for (auto& entry : list) {
      EXPECT_STRNE(entry.reason, "") << entry.name;
      names.emplace_back(entry.name);
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  }
}

}  // namespace
}  // namespace cordon::broker
