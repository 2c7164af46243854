#include "frontend/cli/flags.h"

#include <gtest/gtest.h>

#include "frontend/cli/command_line.h"
#include "frontend/cli/failure.h"

namespace cordon::cli {
namespace {

using Words = std::vector<std::string>;

struct Parsed {
  CLI::App app;
  SandboxFlags sandbox;
  ExecFlags exec;
  Words program;

  explicit Parsed(const Words& words) {
    exec.addTo(app);
    sandbox.addTo(app);
    SplitLine split = splitAtProgram(app, words, 0);
    program = split.program;
    app.parse(Words(split.ours.rbegin(), split.ours.rend()));
  }
};

TEST(Flags, BecomeTheApisNumbers) {
  Parsed parsed({"--runtime", "runc",   "--memory", "128M",  "--pids=64",   "--cpu-time", "2s",
                 "--cpus",    "0.5",    "--wall",   "1.5s",  "--file-size", "100M",       "--files",
                 "256",       "--disk", "64M",      "--tmp", "1M",          "--shm",      "2M",
                 "--output",  "1M",     "--ttl",    "1h",    "--idle",      "10m",        "true"});
  v1::SandboxSpec spec = parsed.sandbox.message();
  EXPECT_EQ(spec.runtime(), "runc");
  EXPECT_EQ(spec.limits().memory_bytes(), 128 << 20);
  EXPECT_EQ(spec.limits().pids(), 64);
  EXPECT_EQ(spec.limits().cpu_time_ms(), 2000);
  EXPECT_EQ(spec.limits().cpu_millis(), 500);
  EXPECT_EQ(spec.limits().wall_ms(), 1500);
  EXPECT_EQ(spec.limits().file_size_bytes(), 100 << 20);
  EXPECT_EQ(spec.limits().files(), 256);
  EXPECT_EQ(spec.limits().disk_bytes(), 64 << 20);
  EXPECT_EQ(spec.limits().tmp_bytes(), 1 << 20);
  EXPECT_EQ(spec.limits().shm_bytes(), 2 << 20);
  EXPECT_EQ(spec.limits().output_bytes(), 1 << 20);
  EXPECT_EQ(spec.ttl_ms(), 3'600'000);
  EXPECT_EQ(spec.idle_ms(), 600'000);
  EXPECT_EQ(parsed.program, Words({"true"}));
}

TEST(Flags, WhatIsNotGivenIsAbsent) {
  v1::SandboxSpec spec = Parsed(Words{"true"}).sandbox.message();
  EXPECT_FALSE(spec.has_limits());
  EXPECT_FALSE(spec.has_ttl_ms());
}

TEST(Flags, ALimitThatIsNoneIsRefusedByName) {
  for (const char* flag : {"--memory", "--pids", "--cpus", "--cpu-time", "--wall", "--file-size",
                           "--files", "--disk", "--tmp", "--shm", "--output", "--ttl", "--idle"}) {
    for (const char* text : {"", "0", "-1", "12X", "M", " 1", "0x10", "1e3", "99999999999999999999",
                             "18446744073709551615"}) {
      SCOPED_TRACE(std::string(flag) + "=" + text);
      try {
        Parsed(Words{std::string(flag) + "=" + text, "true"}).sandbox.message();
        ADD_FAILURE() << "accepted";
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(flag), std::string::npos) << error.what();
      } catch (const CLI::ParseError&) {
        // Refused a step earlier; the command ends with 125 likewise.
      }
    }
  }
}

TEST(Flags, ZeroAndNegativeTimesAreRefused) {
  for (const char* text : {"0s", "0ms", "-1s", "-0.5s"}) {
    EXPECT_THROW(Parsed(Words{std::string("--wall=") + text}).sandbox.message(), UsageError);
    EXPECT_THROW(Parsed(Words{"--wall", text}).sandbox.message(), UsageError) << text;
  }
}

TEST(Flags, EnvironmentNeedsNameAndEquals) {
  Parsed good(Words{"--env", "A=1", "--env", "B=", "--env", "C=x=y", "true"});
  v1::ExecSpec spec = good.exec.message(good.program);
  ASSERT_EQ(spec.env_size(), 3);
  EXPECT_EQ(spec.env(1), "B=");
  EXPECT_EQ(spec.env(2), "C=x=y");
  EXPECT_THROW(Parsed(Words{"--env", "NOEQUALS"}).exec.message({"true"}), UsageError);
  EXPECT_THROW(Parsed(Words{"--env", "=x"}).exec.message({"true"}), UsageError);
}

TEST(Flags, EnvironmentValuesAreNotTakenApart) {
  Parsed parsed(Words{"--env", "A=[1,2]", "--env", "B=a,b", "true"});
  v1::ExecSpec spec = parsed.exec.message(parsed.program);
  ASSERT_EQ(spec.env_size(), 2);
  EXPECT_EQ(spec.env(0), "A=[1,2]");
  EXPECT_EQ(spec.env(1), "B=a,b");
}

TEST(Flags, TheSeccompProfileIsPassedOn) {
  EXPECT_EQ(Parsed(Words{"--seccomp", "tuned"}).sandbox.message().seccomp(), "tuned");
  EXPECT_EQ(Parsed(Words{"true"}).sandbox.message().seccomp(), "");
  EXPECT_THROW(Parsed(Words{"--seccomp", "\xff"}).sandbox.message(), UsageError);
}

TEST(Flags, TextThatIsNotUtf8IsRefused) {
  EXPECT_THROW(Parsed(Words{"--runtime", "\xff"}).sandbox.message(), UsageError);
  EXPECT_THROW(Parsed(Words{"--user", "\xff"}).exec.message({"true"}), UsageError);
}

TEST(Flags, NoProgramIsSaid) {
  EXPECT_THROW(Parsed(Words{"--json", "--"}).exec.message({}), UsageError);
}

TEST(SandboxId, HasNameAndToken) {
  EXPECT_EQ(sandboxId("sb-x.t"), "sb-x.t");
  for (const char* text : {"", ".", "sb-x", "sb-x.", ".t"}) {
    EXPECT_THROW(sandboxId(text), UsageError) << text;
  }
}

SplitLine split(const Words& words, size_t positionals) {
  CLI::App app;
  ExecFlags exec;
  SandboxFlags sandbox;
  exec.addTo(app);
  sandbox.addTo(app);
  return splitAtProgram(app, words, positionals);
}

TEST(CommandLine, TheProgramsOwnFlagsAreItsOwn) {
  SplitLine line = split({"--memory", "1M", "python3", "-c", "x", "--memory", "2M", "--"}, 0);
  EXPECT_EQ(line.ours, Words({"--memory", "1M"}));
  EXPECT_EQ(line.program, Words({"python3", "-c", "x", "--memory", "2M", "--"}));
}

TEST(CommandLine, ADoubleDashBeginsTheProgram) {
  EXPECT_EQ(split({"--json", "--", "--help"}, 0).program, Words({"--help"}));
  EXPECT_EQ(split({"--", "-x"}, 0).program, Words({"-x"}));
  EXPECT_EQ(split({"--", "--"}, 0).program, Words({"--"}));
  EXPECT_TRUE(split({"--json"}, 0).program.empty());
}

TEST(CommandLine, FlagsMayFollowTheId) {
  SplitLine line = split({"--json", "ID", "--wall", "2s", "sh", "-c", "exit"}, 1);
  EXPECT_EQ(line.ours, Words({"--json", "ID", "--wall", "2s"}));
  EXPECT_EQ(line.program, Words({"sh", "-c", "exit"}));
  EXPECT_EQ(split({"ID", "--", "sh"}, 1).program, Words({"sh"}));
}

TEST(CommandLine, AnEmptyWordIsAProgramToo) {
  EXPECT_EQ(split({"", "x"}, 0).program, Words({"", "x"}));
  EXPECT_EQ(split({"-", "x"}, 0).program, Words({"-", "x"}));
}

}  // namespace
}  // namespace cordon::cli
