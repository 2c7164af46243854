// The table of what is contained, escaped and inconclusive, program by program.
#include "escape_suite/predicates.h"

#include <gtest/gtest.h>

#include <functional>

#include "escape_suite/suite.h"

namespace cordon::escape {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr const char* kOomCounter = "memory.oom_control oom_kill (exec)";

// A run that began and ended well with these facts, in a sandbox that answers
// and is released without a trace.
Observation observe(const std::string& program, const std::string& facts) {
  Observation o;
  o.program = program;
  o.armed = true;
  const SuiteRow* row = findRow(program);
  if (row != nullptr) o.limits = row->limits;
  o.facts = parseFacts("FACT begun=1\n" + facts + "FACT done=1\n");
  o.exec.finished = true;
  o.exec.started = true;
  o.outside.listening = true;
  o.outside.filesChecked = true;
  o.outside.answersAfter = true;
  o.outside.released = true;
  o.outside.receiptComplete = true;
  return o;
}

// The same, stopped on its way: no done=1, and a verdict.
Observation stopped(const std::string& program, const std::string& facts, const char* control) {
  Observation o = observe(program, "");
  o.facts = parseFacts("FACT begun=1\n" + facts);
  o.exec.signaled = true;
  o.exec.code = 9;
  o.exec.control = control;
  o.exec.stopped = true;
  o.exec.evidence.push_back(Counter{kOomCounter, 0, 1, "kernel"});
  return o;
}

void expect(const Observation& o, Containment containment, const char* control) {
  Judgement judgement = judge(o);
  EXPECT_STREQ(name(judgement.containment), name(containment))
      << o.program << ": " << judgement.evidence;
  EXPECT_EQ(judgement.control, control) << o.program << ": " << judgement.evidence;
  EXPECT_FALSE(judgement.evidence.empty()) << o.program;
}
void expectContained(const Observation& o, const char* control) {
  expect(o, Containment::kContained, control);
}
void expectEscaped(const Observation& o) {
  expect(o, Containment::kEscaped, "none");
}
void expectInconclusive(const Observation& o) {
  expect(o, Containment::kInconclusive, "none");
}

// ---- What holds for every program ----

TEST(EveryProgram, IsKnownAndInconclusiveWhenItCouldNotEvenStart) {
  for (const SuiteRow& row : suite()) {
    Observation o = observe(row.program, "");
    o.facts = Facts{};
    o.exec.started = false;
    o.exec.startErrno = 13;
    expectInconclusive(o);
    o.exec.finished = false;
    o.exec.failure = "UNAVAILABLE";
    expectInconclusive(o);
  }
  expectInconclusive(observe("no_such_program", ""));
}

TEST(EveryProgram, IsInconclusiveWhenItEndedBeforeItTried) {
  for (const SuiteRow& row : suite()) {
    // Traps are all that one leaves, and a daemon is told apart by its fact.
    Observation o = observe(row.program, "");
    o.facts = parseFacts("FACT begun=1\n");
    o.exec.code = 1;
    Judgement judgement = judge(o);
    if (std::string(row.program) == "core_rlimit") {
      // No limit told is not the limit wanted.
      EXPECT_NE(judgement.containment, Containment::kContained);
    } else {
      EXPECT_STREQ(name(judgement.containment), "inconclusive")
          << row.program << ": " << judgement.evidence;
    }
  }
}

TEST(EveryProgram, IsInconclusiveWhenItsFactsAreNone) {
  for (const SuiteRow& row : suite()) {
    Observation o = observe(row.program, "");
    o.facts = parseFacts("I am contained, believe me\n");
    expectInconclusive(o);
  }
}

TEST(EveryProgram, EscapesWhenSomethingStaysOrTheSandboxIsDead) {
  Observation good = observe("raw_socket", "FACT try_raw=1\n");
  expectContained(good, "network");

  Observation left = good;
  left.outside.receiptComplete = false;
  left.outside.receiptLeft = "cgroup /cordon/x (EBUSY)";
  expectEscaped(left);
  EXPECT_NE(judge(left).evidence.find("cgroup /cordon/x"), std::string::npos);

  Observation silent = good;
  silent.outside.answersAfter = false;
  expectEscaped(silent);

  Observation lost = good;
  lost.exec.control = "sandbox_lost";
  expectEscaped(lost);

  Observation unreleased = good;
  unreleased.outside.released = false;
  expectInconclusive(unreleased);
}

// ---- Refusals ----

TEST(Refusals, OneSuccessIsAnEscape) {
  for (const char* program : {"raw_socket", "mount", "user_namespace", "mknod", "keyctl"}) {
    expectEscaped(observe(program, "FACT try_a=1\nFACT try_b=0\nFACT try_c=1\n"));
  }
}

TEST(Refusals, AGateIsRefusedOnlyByRightsAndAbsence) {
  for (int error : {1, 13, 38}) {
    expectContained(observe("module_load", "FACT gate_init=" + std::to_string(error) + "\n"),
                    "privileges");
  }
  for (int error : {0, 2, 8, 9, 14, 22, 26}) {
    expectEscaped(observe("module_load", "FACT gate_init=" + std::to_string(error) + "\n"));
  }
}

TEST(Refusals, NothingTriedIsInconclusive) {
  expectInconclusive(observe("mknod", ""));
  expectInconclusive(observe("mknod", "FACT try_null=-1\n"));
  expectInconclusive(observe("mount", "FACT mkdir=30\n"));
}

TEST(Refusals, AnAttemptThatKilledItsChildWasRefused) {
  expectContained(observe("foreign_abi", "FACT try_ia32=1011\nFACT try_x32=1031\n"), "privileges");
}

TEST(Refusals, KilledForASystemCallIsNamedSo) {
  expectContained(stopped("bpf", "", "syscall"), "syscall");
  expectInconclusive(stopped("bpf", "", "wall_clock"));
}

// ---- The thirteen ----

TEST(Connect, WhatArrivedCountsWhateverTheProgramSays) {
  Observation o = observe("connect", "FACT try_loopback_tcp=111\nFACT try_abstract_stream=111\n");
  expectContained(o, "network");
  o.outside.heard = {"tcp 127.0.0.1 port 4711"};
  expectEscaped(o);
  o.facts = Facts{};
  o.exec.finished = false;
  expectEscaped(o);
}

TEST(Connect, WhereThereIsNoIpv6TheEvidenceSaysSo) {
  Observation o = observe("connect", "FACT try_loopback_tcp=111\n");
  o.outside.noIpv6 = "bind ::1: Cannot assign requested address";
  expectContained(o, "network");
  EXPECT_NE(judge(o).evidence.find("IPv6 was not tried"), std::string::npos);
}

TEST(Connect, WithoutListenersNothingIsKnown) {
  Observation o = observe("connect", "FACT try_loopback_tcp=111\n");
  o.outside.listening = false;
  expectInconclusive(o);
}

TEST(Connect, AConnectionThatTheProgramClaimsIsBelieved) {
  expectEscaped(observe("connect", "FACT try_loopback_tcp=111\nFACT try_metadata=0\n"));
}

TEST(WriteOutside, TheHostDecides) {
  Observation o = observe("write_outside", "FACT path0=30\nFACT path1=2\nFACT paths=2\n");
  expectContained(o, "filesystem");
  o.outside.files = {"/etc/x"};
  expectEscaped(o);
  Observation inside = observe("write_outside", "FACT path0=0\nFACT path1=2\nFACT paths=2\n");
  expectContained(inside, "filesystem");
  inside.outside.filesChecked = false;
  expectEscaped(inside);
  expectInconclusive(observe("write_outside", "FACT paths=0\n"));
}

TEST(ReadShadow, AByteIsEnough) {
  expectContained(observe("read_shadow", "FACT try_shadow=2\nFACT bytes=0\n"), "filesystem");
  expectEscaped(observe("read_shadow", "FACT try_shadow=0\nFACT bytes=1\n"));
  expectEscaped(observe("read_shadow", "FACT try_shadow=2\nFACT bytes=1\n"));
}

TEST(Memory, TheVerdictNamesIt) {
  expectContained(stopped("memory", "FACT touched=125829120\n", "memory"), "memory");
  // Killed, and nobody says why.
  expectInconclusive(stopped("memory", "FACT touched=125829120\n", "none"));
  expectInconclusive(stopped("memory", "FACT touched=8388608\n", "wall_clock"));
}

TEST(Memory, MoreThanTheCapIsAnEscape) {
  expectEscaped(stopped("memory", "FACT touched=134217729\n", "memory"));
  expectEscaped(observe("memory", "FACT touched=1073741824 wanted=1073741824 error=0\n"));
}

TEST(Memory, ARefusalIsToldByTheProgramAlone) {
  Observation o = observe("memory", "FACT touched=125829120 wanted=1073741824 error=12\n");
  expectContained(o, "memory");
  EXPECT_NE(judge(o).evidence.find("told by the program"), std::string::npos);
}

TEST(ThreeChildren, TogetherIsWhatCounts) {
  std::string started = "FACT started=3 each=67108864\n";
  Observation o = observe("three_children", started + "FACT together=0 killed=1 refused=0\n");
  o.exec.control = "memory";
  expectContained(o, "memory");
  o.exec.control = "none";
  expectInconclusive(o);
  o.exec.others = {"memory"};
  expectContained(o, "memory");
  expectEscaped(observe("three_children", started + "FACT together=201326592 killed=0\n"));
  expectInconclusive(observe("three_children", "FACT started=2 each=67108864\n"));
  expectInconclusive(observe("three_children", "FACT started=3 each=1048576\nFACT killed=3\n"));
}

TEST(Cpu, WithinItsSlack) {
  expectContained(stopped("cpu", "FACT burned_ms=1100\n", "cpu_time"), "cpu_time");
  expectEscaped(stopped("cpu", "FACT burned_ms=2001\n", "cpu_time"));
  expectInconclusive(stopped("cpu", "FACT burned_ms=900\n", "wall_clock"));
  Observation counted = stopped("cpu", "FACT burned_ms=900\n", "cpu_time");
  counted.exec.cpuMs = 5000;  // counted by others than the program
  expectEscaped(counted);
}

TEST(Sleep, WithinItsSlack) {
  expectContained(stopped("sleep", "FACT slept_ms=1400\n", "wall_clock"), "wall_clock");
  expectEscaped(stopped("sleep", "FACT slept_ms=3501\n", "wall_clock"));
  expectEscaped(observe("sleep", "FACT slept_ms=60000\n"));
  expectInconclusive(stopped("sleep", "FACT slept_ms=100\n", "memory"));
}

TEST(Fork, TheCounterTellsProcessesFromMemory) {
  std::string refused = "FACT wanted=500 alive=61 error=11\n";
  Observation o = observe("fork", refused);
  o.exec.control = "processes";
  expectContained(o, "processes");
  o.exec.control = "memory";
  expectContained(o, "memory");
  o.exec.control = "host_limit";
  expectContained(o, "host_limit");
  // Without a counter the errno speaks, and says who told it.
  o.exec.control = "none";
  expectContained(o, "processes");
  EXPECT_NE(judge(o).evidence.find("told by the program"), std::string::npos);
  expectContained(observe("fork", "FACT wanted=500 alive=61 error=12\n"), "memory");
  expectContained(stopped("fork", "", "memory"), "memory");
}

TEST(Fork, FiveHundredOrMoreThanTheLimit) {
  expectEscaped(observe("fork", "FACT wanted=500 alive=500 error=0\n"));
  expectEscaped(observe("fork", "FACT wanted=500 alive=65 error=11\n"));
  expectInconclusive(observe("fork", "FACT wanted=500 alive=3 error=1\n"));
}

TEST(Flood, DeliveredBytesAreCountedByUs) {
  Observation o = observe("flood", "FACT written=67108864 wanted=67108864 error=0\n");
  o.exec.stdoutTotal = 64 * kMiB;
  o.exec.stdoutDropped = 63 * kMiB;
  o.exec.stdoutDelivered = kMiB;
  o.exec.control = "output";
  expectContained(o, "output");
  o.exec.control = "none";
  expectContained(o, "output");
  o.exec.stdoutDelivered = kMiB + 1;
  expectEscaped(o);
  o.exec.stdoutDelivered = 100;
  o.exec.stdoutDropped = 0;
  expectInconclusive(o);
}

TEST(BigFile, TheLimitAndWhatElseMayComeFirst) {
  std::string reached = "FACT by_tricks=0\nFACT size=33554432 wanted=200000000 error=27\n";
  expectContained(stopped("big_file", reached, "file_size"), "file_size");
  expectContained(stopped("big_file", "FACT by_tricks=0\n", "disk"), "disk");
  expectContained(observe("big_file", reached), "file_size");
  expectEscaped(stopped("big_file", "FACT size=33554433\n", "file_size"));
  expectEscaped(stopped("big_file", "FACT by_tricks=200000000\n", "file_size"));
  expectInconclusive(observe("big_file", "FACT open=13\n"));
}

TEST(Files, ByCountAndByNumber) {
  expectContained(observe("files", "FACT opened=61 highest=63 error=24\n"), "files");
  expectEscaped(observe("files", "FACT opened=65 highest=67 error=24\n"));
  expectEscaped(observe("files", "FACT opened=2 highest=64 error=24\n"));
  expectInconclusive(observe("files", "FACT opened=0 highest=-1 error=13\n"));
}

// ---- The extended set ----

TEST(KillAll, TheSignalMustHaveGoneOut) {
  const std::string seen = "FACT seen=3 reachable=0\n";
  auto ended = [&](const char* facts) { return observe("kill_all", seen + facts); };
  expectContained(ended("FACT kill_error=0 bait_killed=3 survived=1\n"), "privileges");
  expectInconclusive(ended("FACT kill_error=0 bait_killed=0 survived=1\n"));
  expectInconclusive(ended("FACT kill_error=1 bait_killed=0 survived=1\n"));
  expectInconclusive(ended("FACT kill_error=1 bait_killed=3 survived=1\n"));
  expectInconclusive(ended("FACT bait_killed=3 survived=1\n"));
  expectInconclusive(stopped("kill_all", "FACT seen=3 reachable=0\n", "none"));
  Observation onHost = observe("kill_all", "FACT seen=80 reachable=80\n");
  onHost.armed = false;
  expectEscaped(onHost);
}

TEST(Daemon, MustBeGoneAndMustHaveBeenSeen) {
  Observation o = observe("daemon", "FACT daemon=1 nonce=32\n");
  o.exec.leftRunning = 1;
  expectInconclusive(o);
  o.outside.daemonSeen = true;
  expectContained(o, "processes");
  o.outside.daemonAfter = true;
  expectEscaped(o);
  Observation killed = observe("daemon", "FACT daemon=1 nonce=32\n");
  expectContained(killed, "processes");
  expectInconclusive(observe("daemon", "FACT daemon=0 nonce=32\n"));
}

TEST(Fill, UpToTheSizeAndNotFurther) {
  for (const char* program : {"fill_tmp", "fill_shm"}) {
    expectContained(observe(program, "FACT written=8388608 wanted=67108864 error=28\n"), "disk");
    expectContained(stopped(program, "FACT written=4194304\n", "memory"), "memory");
    expectEscaped(observe(program, "FACT written=8388609 wanted=67108864 error=28\n"));
    expectInconclusive(observe(program, "FACT written=0 wanted=67108864 error=2\n"));
    expectContained(observe(program, "FACT written=0 wanted=67108864 error=30\n"), "filesystem");
  }
}

TEST(CoreRlimit, ExactlyOne) {
  std::string refused = "FACT try_raise=1\nFACT crashed=1 dumped=0\n";
  expectContained(observe("core_rlimit", "FACT soft=1 hard=1\n" + refused), "privileges");
  expectEscaped(observe("core_rlimit", "FACT soft=0 hard=0\n" + refused));
  expectEscaped(observe("core_rlimit", "FACT soft=1 hard=2\n" + refused));
  expectEscaped(
      observe("core_rlimit", "FACT soft=1 hard=1\nFACT try_raise=1\nFACT crashed=1 dumped=1\n"));
  expectEscaped(
      observe("core_rlimit", "FACT soft=1 hard=1\nFACT try_raise=0\nFACT crashed=1 dumped=0\n"));
  expectInconclusive(observe("core_rlimit", "FACT soft=1 hard=1\nFACT try_raise=1\n"));
}

TEST(Posture, EveryPart) {
  std::string good =
      "FACT readable=1 uid=1000 no_new_privs=1 seccomp=2 cap_effective=0 cap_permitted=0 "
      "cap_inheritable=0 cap_ambient=0\n";
  for (const char* program : {"posture", "memfd_exec"}) {
    expectContained(observe(program, good), "privileges");
    for (const char* part : {"no_new_privs=0", "seccomp=0", "cap_effective=1", "cap_ambient=128"}) {
      expectEscaped(observe(program, good + "FACT " + part + "\n"));
    }
  }
  expectContained(observe("memfd_exec", "FACT try_memfd=1\n"), "privileges");
}

TEST(InheritedFds, AnythingBesidesTheStreams) {
  std::string none = "FACT examined=65536 extra=0 directories=0 climbed=0 sockets=0\n";
  expectContained(observe("inherited_fds", none), "files");
  expectEscaped(observe("inherited_fds", none + "FACT extra=1\n"));
  expectEscaped(observe("inherited_fds", none + "FACT sockets=1\n"));
}

TEST(Others, TheirOwnFacts) {
  expectContained(observe("netlink", "FACT outside=0\nFACT gate_delete_link=1\n"), "network");
  expectEscaped(observe("netlink", "FACT outside=1\nFACT gate_delete_link=1\n"));
  expectContained(observe("socket_scan", "FACT named=0\nFACT control_sockets=0\n"), "network");
  expectEscaped(observe("socket_scan", "FACT named=1\nFACT control_sockets=0\n"));
  expectContained(observe("steal_descriptors", "FACT processes=3 others=2 stolen=0 error=1\n"),
                  "privileges");
  expectEscaped(observe("steal_descriptors", "FACT processes=3 others=2 stolen=1 error=1\n"));
  expectInconclusive(observe("steal_descriptors", "FACT processes=0 others=0 stolen=0 error=0\n"));
  expectContained(observe("devices", "FACT try_open=2\nFACT nodes=8 beyond=0\n"), "filesystem");
  expectEscaped(observe("devices", "FACT try_open=2\nFACT nodes=9 beyond=1\n"));
  expectContained(observe("symlink_maze", "FACT made=1006 depth=200\n"), "filesystem");
  expectContained(observe("zombies", "FACT wanted=500 made=60 error=11\n"), "processes");
  expectEscaped(observe("zombies", "FACT wanted=500 made=500 error=0\n"));
  expectContained(observe("many_inodes", "FACT made=4096 wanted=300000 error=28\n"), "disk");
  expectEscaped(observe("many_inodes", "FACT made=300000 wanted=300000 error=0\n"));
  expectContained(stopped("many_inodes", "FACT made=4096\n", "memory"), "memory");
  expectContained(stopped("sysv_shm", "FACT held=100000000\n", "memory"), "memory");
  expectContained(observe("sysv_shm", "FACT held=0 error=1\n"), "privileges");
  expectEscaped(observe("sysv_shm", "FACT held=134217729 error=12\n"));
}

TEST(ErrnoName, KnownAndUnknown) {
  EXPECT_EQ(errnoName(1), "EPERM");
  EXPECT_EQ(errnoName(1031), "signal 31");
  EXPECT_EQ(errnoName(4711 - 4711), "errno 0");
  EXPECT_EQ(errnoName(-3), "errno -3");
}

}  // namespace
}  // namespace cordon::escape
