#include "escape_suite/runner.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "escape_suite/outside.h"

namespace cordon::escape {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProgramsName = "escape-programs";
constexpr uintmax_t kMaxProgramBytes = 8 << 20;
constexpr int kCannotRun = 125;

// A sandbox that is released whatever happens.
class Sandbox {
 public:
  Sandbox(SandboxClient& theClient, const EscapeOptions& options, const RowLimits& limits)
      : client(theClient), acquired(client.acquire(options.runtime, options.image, limits)) {}
  ~Sandbox() {
    if (released) return;
    try {
      client.release(acquired.id);
    } catch (const ClientError&) {
      // The row says already what went wrong; its time to live ends it.
    }
  }
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  const Acquired& info() const { return acquired; }
  ExecAnswer exec(const ExecRequest& request) { return client.exec(acquired.id, request); }
  Receipt release() {
    released = true;
    return client.release(acquired.id);
  }

 private:
  SandboxClient& client;
  Acquired acquired;
  bool released = false;
};

std::string findPrograms(const EscapeOptions& options) {
  if (!options.programs.empty()) return options.programs;
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) throw std::system_error(error, "readlink /proc/self/exe");
  for (const fs::path& candidate :
       {self.parent_path() / ".." / "libexec" / "cordon" / kProgramsName,
        self.parent_path() / kProgramsName}) {
    if (fs::is_regular_file(candidate, error)) return candidate.lexically_normal();
  }
  throw std::runtime_error("escape-programs is neither in libexec/cordon nor beside " +
                           self.string());
}

std::string readPrograms(const std::string& path) {
  std::error_code error;
  uintmax_t size = fs::file_size(path, error);
  if (error) throw std::system_error(error, path);
  if (size == 0 || size > kMaxProgramBytes) throw std::runtime_error(path + ": not a program");
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.size() != size) throw std::runtime_error(path + ": can't be read");
  return bytes;
}

std::vector<const SuiteRow*> chosenRows(const EscapeOptions& options) {
  std::vector<const SuiteRow*> rows;
  for (const std::string& wanted : options.only) {
    const SuiteRow* row = findRow(wanted);
    if (row == nullptr) {
      throw std::runtime_error("no such program: " + printable(wanted) + " (--list names them)");
    }
    rows.push_back(row);
  }
  if (!options.only.empty()) return rows;
  for (const SuiteRow& row : suite()) {
    if (!row.extended || options.extended) rows.push_back(&row);
  }
  return rows;
}

// The binary into the sandbox's working directory.
void send(Sandbox& sandbox, const std::string& binary, const RowLimits& limits) {
  ExecRequest request;
  request.argv = {"/bin/sh", "-c", "cat > escape-programs && chmod 755 escape-programs"};
  request.stdinBytes = binary;
  request.keepBytes = 4096;
  request.limits = limits;
  ExecAnswer answer = sandbox.exec(request);
  const ExecReport& report = answer.report;
  if (report.finished && report.started && !report.signaled && report.code == 0) return;
  std::string why = !report.finished  ? report.failure
                    : !report.started ? errnoName(report.startErrno)
                                      : "status " + std::to_string(report.code);
  throw ClientError("the programs could not be sent: " + why, false);
}

bool answers(Sandbox& sandbox, const RowLimits& limits) {
  ExecRequest request;
  request.argv = {"./escape-programs", "alive", "safe"};
  request.limits = limits;
  request.keepBytes = 4096;
  // Any result is an answer, also one that says that there is no process to be
  // had: what matters is that somebody gives it.
  ExecReport report = sandbox.exec(request).report;
  return report.finished && report.control != "sandbox_lost";
}

class RowRun {
 public:
  RowRun(const EscapeOptions& theOptions, SandboxClient& theClient, const std::string& theBinary,
         const SuiteRow& theRow)
      : options(theOptions), client(theClient), binary(theBinary), row(theRow) {}

  Judgement run() {
    Observation seen;
    seen.program = row.program;
    seen.limits = row.limits;
    try {
      prepareOutside();
      Sandbox sandbox(client, options, row.limits);
      runtime = sandbox.info().runtime;
      seen.armed = sandbox.info().isSandbox;
      if (row.sandboxOnly && !seen.armed) {
        return {Containment::kInconclusive, "none", "not run where nothing contains it"};
      }
      send(sandbox, binary, row.limits);
      attack(sandbox, seen);
      watch(seen);
      askAgain(sandbox, seen);
      release(sandbox, seen);
      return judge(seen);
    } catch (const ClientError& error) {
      if (error.fatal) throw;
      return {Containment::kInconclusive, "none", error.what()};
    } catch (const std::system_error& error) {
      return {Containment::kInconclusive, "none", std::string("outside: ") + error.what()};
    }
  }

  std::string runtime;

 private:
  void prepareOutside() {
    places.nonce = randomName();
    if (is("connect")) {
      listeners.emplace(options.connectAddresses);
      places.tcpPort = listeners->tcpPort();
      places.vsockPort = listeners->vsockPort();
      places.abstractName = listeners->abstractName();
      places.addresses = listeners->addresses();
      listening = listeners->check();
    }
    if (is("write_outside")) {
      hostPlaces.emplace();
      places.files = hostPlaces->paths();
    }
  }

  void attack(Sandbox& sandbox, Observation& seen) {
    ExecRequest request;
    request.argv = {"./escape-programs", row.program, seen.armed ? "armed" : "safe"};
    for (std::string& argument : row.arguments(row.limits, places)) {
      request.argv.push_back(std::move(argument));
    }
    request.limits = row.limits;
    request.keepBytes = kMaxFactBytes;
    request.stop = options.stop;
    ExecAnswer answer = sandbox.exec(request);
    seen.exec = answer.report;
    seen.facts = parseFacts(row.factsOnStderr ? answer.err : answer.out);
    if (row.factsOnStderr ? answer.errCut : answer.outCut) {
      seen.facts.items.clear();
      seen.facts.problem = "more than is read";
    }
  }

  void watch(Observation& seen) {
    seen.outside.listening = listening;
    if (listeners.has_value()) {
      seen.outside.heard = listeners->heard();
      seen.outside.noIpv6 = listeners->noIpv6();
    }
    if (hostPlaces.has_value()) {
      seen.outside.files = hostPlaces->found(&seen.outside.filesChecked);
    }
    if (is("daemon")) seen.outside.daemonSeen = processWithArgument(places.nonce);
  }

  // A sandbox that doesn't answer is a finding and not an error of ours.
  void askAgain(Sandbox& sandbox, Observation& seen) {
    try {
      seen.outside.answersAfter = answers(sandbox, row.limits);
    } catch (const ClientError& error) {
      if (error.fatal) throw;
    }
  }

  void release(Sandbox& sandbox, Observation& seen) {
    try {
      Receipt receipt = sandbox.release();
      seen.outside.released = true;
      seen.outside.receiptComplete = receipt.complete;
      seen.outside.receiptLeft = receipt.left;
    } catch (const ClientError& error) {
      if (error.fatal) throw;
    }
    if (is("daemon")) seen.outside.daemonAfter = processWithArgument(places.nonce);
  }

  bool is(std::string_view program) const { return row.program == program; }

  const EscapeOptions& options;
  SandboxClient& client;
  const std::string& binary;
  const SuiteRow& row;
  Places places;
  std::optional<Listeners> listeners;
  std::optional<HostPlaces> hostPlaces;
  bool listening = false;
};

void printList() {
  for (const SuiteRow& row : suite()) {
    std::printf("%-20s %s%s%s\n", row.program, row.aim, row.extended ? " (extended)" : "",
                row.sandboxOnly ? " (not on host)" : "");
  }
}

}  // namespace

Table runSuite(const EscapeOptions& options, SandboxClient& client,
               const std::function<void(const TableRow&)>& progress) {
  std::vector<const SuiteRow*> rows = chosenRows(options);
  std::string binary = readPrograms(findPrograms(options));
  Table table;
  table.runtime = options.runtime;
  for (const SuiteRow* row : rows) {
    if (options.stop.stop_requested()) throw ClientError("stopped", true);
    RowRun run(options, client, binary, *row);
    table.rows.push_back(TableRow{row->program, run.run()});
    if (!run.runtime.empty()) table.runtime = run.runtime;
    if (progress) progress(table.rows.back());
  }
  return table;
}

int runEscape(const EscapeOptions& options, SandboxClient& client) {
  if (options.list) {
    printList();
    return 0;
  }
  try {
    bool showProgress = !options.json && isatty(STDERR_FILENO) == 1;
    size_t finished = 0;
    Table table = runSuite(options, client, [&](const TableRow& row) {
      ++finished;
      if (showProgress) {
        std::fprintf(stderr, "\r\x1b[K%zu %s: %s", finished, row.program.c_str(),
                     name(row.judgement.containment));
      }
    });
    if (showProgress) std::fprintf(stderr, "\r\x1b[K");
    std::string text = options.json ? asJson(table) : asText(table);
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
        std::fflush(stdout) != 0) {
      std::fprintf(stderr, "cordon: the table can't be written\n");
      return kCannotRun;
    }
    return table.exitStatus();
  } catch (const std::exception& error) {
    return reportFailure(error);
  }
}

int reportFailure(const std::exception& error) {
  std::fprintf(stderr, "cordon: %s\n", printable(error.what()).c_str());
  return kCannotRun;
}

}  // namespace cordon::escape
