#include "frontend/cli/session.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>

#include "frontend/cli/interrupts.h"
#include "frontend/cli/render.h"
#include "frontend/verdict/escape.h"

namespace cordon::cli {
namespace {

// Our own output is gone: nobody wants to see more of the program.
struct OutputClosed {};

void writeAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(size_t(written));
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno == EPIPE) {
      throw OutputClosed();
    } else if (errno != EINTR) {
      throw std::system_error(errno, std::system_category(),
                              fd == STDERR_FILENO ? "standard error" : "standard output");
    }
  }
}

bool passesStdin(const ExecFlags& flags) {
  if (flags.noStdin) return false;
  return flags.interactive || !isatty(STDIN_FILENO);
}

void say(const std::string& text) {
  if (!text.empty()) fprintf(stderr, "%s\n", text.c_str());
}

// What a user without --json must know beyond the program's own output.
void sayTheEnd(const v1::Result& result) {
  if (result.has_not_started()) {
    say("cordon: " + verdict::escapeControls(result.not_started().message()));
  }
  say(verdict::describe(fromMessage(result.verdict())));
  if (result.has_explanation()) fputs(text(result.explanation()).c_str(), stderr);
  if (result.has_receipt() && !result.receipt().complete()) {
    say("cordon: not everything was removed:\n" + text(result.receipt()));
  }
}

}  // namespace

int serve(const ExecFlags& flags,
          const std::function<client::Outcome(const client::Streams&)>& start) {
  std::stop_source stop;
  Interrupts interrupts(stop);
  client::Streams streams;
  streams.stop = stop.get_token();
  if (passesStdin(flags)) streams.stdinFd = STDIN_FILENO;
  if (!flags.json) {
    streams.onOutput = [](v1::OutputStream stream, uint64_t, std::string_view bytes) {
      writeAll(stream == v1::STDERR ? STDERR_FILENO : STDOUT_FILENO, bytes);
    };
  }
  try {
    client::Outcome outcome = start(streams);
    if (flags.json) {
      writeAll(STDOUT_FILENO, line(toJson(outcome)));
    } else {
      sayTheEnd(outcome.result);
    }
    return exitStatus(outcome.result);
  } catch (const OutputClosed&) {
    return 128 + SIGPIPE;
  } catch (const client::ApiError& error) {
    if (interrupts.signal() == 0 || error.reason() != client::kStopped) throw;
    if (flags.json) writeAll(STDOUT_FILENO, line(toJson(error)));
    say("cordon: " + text(error));
    return 128 + interrupts.signal();
  }
}

}  // namespace cordon::cli
