// Did a hostile program get what it wanted? One pure function per program.
//
// A judgement rests on three things: the facts that the program told (which may
// be lies: where they can be checked from outside, they are not believed), the
// result with its verdict, and what was seen from outside. Whatever is unclear
// is never `contained`:
//
//   escaped       it got what it wanted, or something of it stayed
//   contained     it tried, and `control` kept it from it
//   inconclusive  it could not even try, or what kept it from it is not known
//
// `control` is the verdict's where the service named one (memory, processes,
// cpu_time, wall_clock, output, file_size, disk, ...). Where no counter exists
// it comes from the facts: network, filesystem, files (descriptors), privileges
// (ids, capabilities, seccomp). No I/O here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "escape_suite/facts.h"

namespace cordon::escape {

enum class Containment : uint8_t { kContained, kEscaped, kInconclusive };
const char* name(Containment containment);  // "contained"

struct Judgement {
  Containment containment = Containment::kInconclusive;
  std::string control;   // "none" when escaped or inconclusive
  std::string evidence;  // one line, ours
};

// What a row asks for; 0 = the service's default.
struct RowLimits {
  uint64_t memoryBytes = 0, pids = 0, cpuTimeMs = 0, wallMs = 0, fileSizeBytes = 0, files = 0,
           diskBytes = 0, tmpBytes = 0, shmBytes = 0, outputBytes = 0;
};

struct Counter {
  std::string name;
  uint64_t before = 0, after = 0;
  std::string source;  // "kernel"
};

// The answer of the service about one exec.
struct ExecReport {
  bool finished = false;  // there was a result at all
  std::string failure;    // when not: why
  bool started = false;
  int startErrno = 0;
  bool signaled = false;
  int code = 0;
  std::string control = "none";  // the verdict's
  bool stopped = false;
  std::vector<std::string> others;
  std::vector<Counter> evidence;
  double wallMs = 0;
  double cpuMs = 0;
  uint64_t stdoutDelivered = 0;  // bytes that we counted ourselves
  uint64_t stdoutTotal = 0, stdoutDropped = 0;
  uint64_t leftRunning = 0;
};

// What the runner saw from outside of the sandbox.
struct Outside {
  bool listening = false;          // every listener answered to ourselves first
  std::vector<std::string> heard;  // listeners that something else reached
  std::string noIpv6;              // why there was no listener on ::1; "" = there was
  bool filesChecked = false;       // each place could be looked at
  std::vector<std::string> files;  // found on the host
  bool daemonSeen = false;         // while the sandbox lived
  bool daemonAfter = false;        // after its release
  bool answersAfter = false;       // another exec got a result afterwards
  bool released = false;           // release was answered
  bool receiptComplete = false;
  std::string receiptLeft;  // "cgroup /cordon/... (16)"
};

struct Observation {
  std::string program;
  bool armed = false;
  RowLimits limits;
  Facts facts;
  ExecReport exec;
  Outside outside;
};

using Predicate = Judgement (*)(const Observation&);

// The predicate of a program, then what holds for all of them: nothing may be
// left by the release, and the sandbox must answer afterwards. An unknown
// program is inconclusive.
Judgement judge(const Observation& observation);

// "EPERM" for 1; "errno 4711" for what has no name here.
std::string errnoName(int64_t error);

}  // namespace cordon::escape
