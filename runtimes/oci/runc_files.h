// What the runc driver keeps in a sandbox's directory.
#pragma once
#include <kj/io.h>

#include <optional>
#include <string>
#include <vector>

#include "broker/cgroups.h"

namespace cordon::runtimes {

constexpr char kBundleDir[] = "bundle";
constexpr char kStateDir[] = "state";  // runc's --root
constexpr char kPidFile[] = "init.pid";
constexpr char kLogFile[] = "runc.log";

// Makes bundle/ with config.json and state/ in `directory`. Throws (kj).
void writeRuncFiles(const std::string& directory, const std::string& config);

// The pid that runc wrote, if it is one.
std::optional<pid_t> readPidFile(const std::string& directory);

// Makes a file there that is the namespace `fd`, and returns its path: runc opens
// it by name, which it could not do through the broker's own /proc entry.
std::string bindNamespace(const std::string& directory, int fd);

// Removes all of it. Idempotent; returns what is left.
std::vector<broker::LeftOver> removeRuncFiles(const std::string& directory);

// For a program's stdout and stderr: a memfd of fixed size, so that whoever
// inherits it can neither fill memory nor be waited on.
kj::AutoCloseFd makeOutputFile();
// What was written to it, at most its size.
std::string readOutputFile(int fd);

// The end of runc's log, or else what it printed: bytes that are logged and
// never looked into, one line of printable ASCII.
std::string describeRuncOutput(const std::string& directory, int output);

}  // namespace cordon::runtimes
