// The runner against a service that is none: what it asks for, in which order,
// and that nothing is kept.
#include "escape_suite/runner.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace cordon::escape {
namespace {

class FakeClient : public SandboxClient {
 public:
  std::vector<std::string> calls;
  std::vector<std::vector<std::string>> attacks;
  std::string received;  // what was sent over stdin
  bool sandbox = true;
  std::string facts = "FACT begun=1\nFACT try_raw=1\nFACT done=1\n";
  bool sendFails = false;
  bool attackThrows = false;
  bool silentAfter = false;
  bool complete = true;
  bool unreachable = false;

  Acquired acquire(const std::string& runtime, const std::string& image,
                   const RowLimits& limits) override {
    if (unreachable) throw ClientError("UNAVAILABLE: nobody there", true);
    calls.push_back("acquire " + runtime + " " + image + " " + std::to_string(limits.pids));
    return {"sb-1.token", runtime.empty() ? "runc" : runtime, sandbox};
  }

  ExecAnswer exec(const std::string& id, const ExecRequest& request) override {
    EXPECT_EQ(id, "sb-1.token");
    ExecAnswer answer;
    answer.report.finished = true;
    answer.report.started = true;
    if (request.argv[0] == "/bin/sh") {
      calls.push_back("send");
      received = request.stdinBytes.value_or("");
      answer.report.code = sendFails ? 1 : 0;
    } else if (request.argv[1] == "alive") {
      calls.push_back("alive");
      answer.report.finished = !silentAfter;
    } else {
      calls.push_back("attack");
      attacks.push_back(request.argv);
      if (attackThrows) throw ClientError("INTERNAL: no", false);
      answer.out = facts;
    }
    return answer;
  }

  Receipt release(const std::string&) override {
    calls.push_back("release");
    return {complete, complete ? "" : "mount /x (EBUSY)"};
  }
};

class RunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    char made[] = "/tmp/cordon-runner-test-XXXXXX";
    int fd = mkstemp(made);
    ASSERT_GE(fd, 0);
    close(fd);
    path = made;
    std::ofstream(path, std::ios::binary) << std::string(
        "\x7f"
        "ELF\0program",
        12);
    options.programs = path;
    options.runtime = "runc";
    options.only = {"raw_socket"};
  }
  void TearDown() override { unlink(path.c_str()); }

  Judgement only() {
    Table table = runSuite(options, client);
    EXPECT_EQ(table.rows.size(), 1u);
    return table.rows.at(0).judgement;
  }

  std::string path;
  EscapeOptions options;
  FakeClient client;
};

using Calls = std::vector<std::string>;

TEST_F(RunnerTest, GoesThroughItsSteps) {
  options.image = "host-usr";
  EXPECT_EQ(only().containment, Containment::kContained);
  EXPECT_EQ(client.calls,
            (Calls{"acquire runc host-usr 64", "send", "attack", "alive", "release"}));
  EXPECT_EQ(client.received, std::string("\x7f"
                                         "ELF\0program",
                                         12));
  EXPECT_EQ(client.attacks.at(0),
            (std::vector<std::string>{"./escape-programs", "raw_socket", "armed"}));
}

TEST_F(RunnerTest, ArmsNothingWhereNothingContainsIt) {
  client.sandbox = false;
  options.only = {"raw_socket", "rename_mounts"};
  Table table = runSuite(options, client);
  ASSERT_EQ(client.attacks.size(), 1u);
  EXPECT_EQ(client.attacks[0][2], "safe");
  EXPECT_EQ(table.rows[1].judgement.containment, Containment::kInconclusive);
  EXPECT_EQ(client.calls.back(), "release");
}

TEST_F(RunnerTest, ReleasesWhenSendingFails) {
  client.sendFails = true;
  EXPECT_EQ(only().containment, Containment::kInconclusive);
  EXPECT_EQ(client.calls, (Calls{"acquire runc  64", "send", "release"}));
}

TEST_F(RunnerTest, ReleasesWhenTheServiceFailsInTheMiddle) {
  client.attackThrows = true;
  Judgement judgement = only();
  EXPECT_EQ(judgement.containment, Containment::kInconclusive);
  EXPECT_NE(judgement.evidence.find("INTERNAL"), std::string::npos);
  EXPECT_EQ(client.calls.back(), "release");
}

TEST_F(RunnerTest, ASilentSandboxAndAnIncompleteReceiptAreEscapes) {
  client.silentAfter = true;
  EXPECT_EQ(only().containment, Containment::kEscaped);
  client.silentAfter = false;
  client.complete = false;
  Judgement judgement = only();
  EXPECT_EQ(judgement.containment, Containment::kEscaped);
  EXPECT_NE(judgement.evidence.find("mount /x"), std::string::npos);
}

TEST_F(RunnerTest, TellsTheProgramsWhereToReachAndWrite) {
  options.only = {"connect", "write_outside", "daemon"};
  options.connectAddresses = {"127.0.0.3"};
  client.facts = "FACT begun=1\nFACT try_a=111\nFACT paths=1\nFACT daemon=1\nFACT done=1\n";
  Table table = runSuite(options, client);
  for (const TableRow& row : table.rows) {
    EXPECT_EQ(row.judgement.containment, Containment::kContained)
        << row.program << ": " << row.judgement.evidence;
  }
  ASSERT_EQ(client.attacks.size(), 3u);
  ASSERT_EQ(client.attacks[0].size(), 8u);
  EXPECT_GT(std::stoi(client.attacks[0][3]), 0);
  EXPECT_TRUE(client.attacks[0][4].starts_with("cordon-escape-"));
  EXPECT_EQ(client.attacks[0][6], "127.0.0.3");
  EXPECT_TRUE(client.attacks[1][3].starts_with("/etc/cordon-escape-"));
  EXPECT_EQ(client.attacks[2][3].size(), 32u);
}

TEST_F(RunnerTest, SeesWhatWasWrittenOnTheHostAndRemovesIt) {
  // A service that lets its programs do what they want.
  class Writer : public FakeClient {
   public:
    ExecAnswer exec(const std::string& id, const ExecRequest& request) override {
      ExecAnswer answer = FakeClient::exec(id, request);
      if (request.argv[1] == "write_outside") {
        written = request.argv.back();
        std::ofstream(written) << "x";
      }
      return answer;
    }
    std::string written;
  } writer;
  writer.facts = "FACT begun=1\nFACT path0=30\nFACT paths=1\nFACT done=1\n";
  options.only = {"write_outside"};
  Table table = runSuite(options, writer);
  EXPECT_EQ(table.rows.at(0).judgement.containment, Containment::kEscaped);
  ASSERT_FALSE(writer.written.empty());
  EXPECT_NE(access(writer.written.c_str(), F_OK), 0);
}

TEST_F(RunnerTest, RunsThirteenAndMoreWhenExtended) {
  options.only.clear();
  EXPECT_EQ(runSuite(options, client).rows.size(), 13u);
  options.extended = true;
  EXPECT_EQ(runSuite(options, client).rows.size(), suite().size());
}

TEST_F(RunnerTest, SaysWhatItCannotRun) {
  options.only = {"nonsense"};
  EXPECT_THROW(runSuite(options, client), std::runtime_error);
  EXPECT_EQ(runEscape(options, client), 125);
  options.only = {"raw_socket"};
  options.programs = "/nonexistent";
  EXPECT_EQ(runEscape(options, client), 125);
  options.programs = path;
  client.unreachable = true;
  EXPECT_EQ(runEscape(options, client), 125);
}

TEST_F(RunnerTest, ExitStatusIsTheTables) {
  options.json = true;
  testing::internal::CaptureStdout();
  EXPECT_EQ(runEscape(options, client), 0);
  client.facts = "FACT begun=1\nFACT try_raw=0\nFACT done=1\n";
  EXPECT_EQ(runEscape(options, client), 1);
  client.facts = "";
  EXPECT_EQ(runEscape(options, client), 1);
  options.list = true;
  EXPECT_EQ(runEscape(options, client), 0);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("\"runtime\":\"runc\""), std::string::npos);
}

}  // namespace
}  // namespace cordon::escape
