// Small files of /proc.
#pragma once
#include <sys/types.h>

#include <string>

namespace cordon::agent {

// The whole file; "" when it can't be read.
std::string readProcFile(const std::string& path);

// The number behind "Key:" of a status file; 0 where there is none.
pid_t statusNumber(const std::string& status, const char* key);

// "/proc/PID".
std::string procPath(pid_t pid);

struct ProcStat {
  char state = '\0';  // as in /proc/PID/stat; '\0': there is no such process
  pid_t parent = 0;

  bool dead() const { return state == 'Z' || state == 'X'; }
};
// Of /proc/PID or /proc/PID/task/TID.
ProcStat readProcStat(const std::string& directory);

}  // namespace cordon::agent
