// The escape suite's runner: sends hostile programs into sandboxes, one fresh
// sandbox each, and says what became of them.
//
// Per program: acquire with the row's limits, send the binary over stdin, run
// it, judge its facts, the result and what was seen from outside, see whether
// the sandbox still answers, release and look at the receipt.
#pragma once
#include <exception>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "escape_suite/client.h"
#include "escape_suite/suite.h"
#include "escape_suite/table.h"

namespace cordon::escape {

struct EscapeOptions {
  std::string address;            // of the service; "" = CORDON_AGENTS or the default
  std::string runtime;            // "" = the service's default
  std::string image;              // "" = the service's default
  std::vector<std::string> only;  // program names; empty: the thirteen
  bool extended = false;          // the extended set besides
  // IP addresses of this machine to listen on besides the loopback.
  std::vector<std::string> connectAddresses;
  // The binary of the hostile programs; "" = libexec/cordon/escape-programs
  // beside this program's prefix, or in its own directory.
  std::string programs;
  bool json = false;
  bool list = false;  // print the programs and their aims, run nothing
  // Requested: the running program is cancelled, its sandbox released, and the
  // suite ends without a table.
  std::stop_token stop;
};

// Runs the rows and calls `progress` (if set) after each. Throws
// std::runtime_error where nothing can be said: unknown program name, no
// binary, no service.
Table runSuite(const EscapeOptions& options, SandboxClient& client,
               const std::function<void(const TableRow&)>& progress = nullptr);

// `cordon escape`: prints the list, the table or the JSON on stdout and errors
// on stderr. 0 when everything was contained, 1 when not, 125 when the suite
// could not run.
int runEscape(const EscapeOptions& options, SandboxClient& client);

// The same with the real service (client_grpc.cc): all that the command does.
// SIGINT, SIGTERM and SIGHUP stop it, and the status is 128 + signal.
int runEscape(const EscapeOptions& options);

// Prints the error on stderr; 125.
int reportFailure(const std::exception& error);

}  // namespace cordon::escape
