// What the runner needs of the service. client_grpc.h is the real one; tests
// have their own.
#pragma once
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

#include "escape_suite/predicates.h"

namespace cordon::escape {

// The service refused or failed; what() is one line. `fatal`: there is nobody
// to talk to, and no further row would fare better.
class ClientError : public std::runtime_error {
 public:
  ClientError(const std::string& text, bool isFatal) : std::runtime_error(text), fatal(isFatal) {}
  const bool fatal;
};

struct Acquired {
  std::string id;
  std::string runtime;  // as the service named it
  bool isSandbox = true;
};

struct ExecRequest {
  std::vector<std::string> argv;
  std::optional<std::string> stdinBytes;
  RowLimits limits;      // the part that belongs to an exec; 0 = none asked
  size_t keepBytes = 0;  // of each stream; past it bytes are only counted
  std::stop_token stop;  // requested: the program is killed, ClientError (fatal)
};

struct ExecAnswer {
  ExecReport report;
  std::string out, err;
  bool outCut = false, errCut = false;  // something is missing in them
};

struct Receipt {
  bool complete = false;
  std::string left;
};

class SandboxClient {
 public:
  virtual ~SandboxClient() = default;
  // All throw ClientError.
  virtual Acquired acquire(const std::string& runtime, const std::string& image,
                           const RowLimits& limits) = 0;
  virtual ExecAnswer exec(const std::string& id, const ExecRequest& request) = 0;
  virtual Receipt release(const std::string& id) = 0;
};

}  // namespace cordon::escape
