#include "frontend/cli/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <thread>

#include "frontend/cli/fake_service.h"
#include "frontend/cli/interrupts.h"
#include "frontend/cli/render.h"

namespace cordon::cli {
namespace {

using namespace std::chrono_literals;
using testing_service::FakeService;
using testing_service::sendOutput;
using testing_service::sendResult;
using testing_service::Stream;
using testing_service::untilCancelled;

struct Done {
  int status = -1;
  std::string out, err;
};

Done cordon(const std::vector<std::string>& words) {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(makeRunCommand());
  commands.push_back(makeAcquireCommand());
  commands.push_back(makeExecCommand());
  commands.push_back(makeReleaseCommand());
  commands.push_back(makeInspectCommand());
  commands.push_back(makeListCommand());
  commands.push_back(makeRuntimesCommand());
  commands.push_back(makeUpCommand());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Done done;
  done.status = runCommandLine(std::move(commands), words);
  std::cout.flush();
  done.out = testing::internal::GetCapturedStdout();
  done.err = testing::internal::GetCapturedStderr();
  return done;
}

// Commands against a service that answers as each test says; standard input is
// empty.
class CommandTest : public testing::Test {
 protected:
  void SetUp() override {
    // As in the program, where no thread is older than the block.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    char name[] = "/tmp/cordon-command-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory = name;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + directory + "/a.sock", grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    ASSERT_NE(server, nullptr);
    setenv("CORDON_AGENTS", ("unix:" + directory + "/a.sock").c_str(), 1);
    stdinBefore = dup(STDIN_FILENO);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    close(null);
  }
  void TearDown() override {
    dup2(stdinBefore, STDIN_FILENO);
    close(stdinBefore);
    unsetenv("CORDON_AGENTS");
    server->Shutdown(std::chrono::system_clock::now() + 5s);
    unlink((directory + "/a.sock").c_str());
    rmdir(directory.c_str());
  }

  std::string directory;
  FakeService service;
  std::unique_ptr<grpc::Server> server;
  int stdinBefore = -1;
};

// First, while no thread of a service opens or closes descriptors.
TEST(Interrupts, WhatCannotBeSetUpLeavesNothingBehind) {
  auto lowestFree = [] {
    Fd fd(check(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"));
    return fd.get();
  };
  auto blocked = [] {
    sigset_t now{};
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return sigismember(&now, SIGTERM) == 1;
  };
  int lowest = lowestFree();
  rlimit before{};
  check(getrlimit(RLIMIT_NOFILE, &before), "getrlimit");
  rlimit few = before;
  few.rlim_cur = rlim_t(lowest) + 1;  // room for the signalfd alone
  check(setrlimit(RLIMIT_NOFILE, &few), "setrlimit");
  EXPECT_THROW(Interrupts{std::stop_source()}, std::system_error);
  check(setrlimit(RLIMIT_NOFILE, &before), "setrlimit");
  EXPECT_FALSE(blocked());
  EXPECT_EQ(lowestFree(), lowest);
  {
    Interrupts interrupts{std::stop_source()};
    EXPECT_TRUE(blocked());
  }
  EXPECT_FALSE(blocked());
}

TEST(CommandLine, HelpShowsExamples) {
  for (const char* name :
       {"run", "acquire", "exec", "release", "inspect", "ls", "runtimes", "up"}) {
    Done done = cordon({name, "--help"});
    EXPECT_EQ(done.status, 0) << name;
    EXPECT_NE(done.out.find("Examples:"), std::string::npos) << done.out;
    EXPECT_NE(done.out.find(std::string("cordon ") + name), std::string::npos) << done.out;
  }
}

TEST(CommandLine, WhatItDoesNotKnowIsAnErrorOfItsOwn) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"no-such"},
                                             {"run"},
                                             {"run", "--no-such-flag", "true"},
                                             {"run", "--memory"},
                                             {"run", "--memory=0", "true"},
                                             {"exec"},
                                             {"exec", "not-an-id", "true"},
                                             {"release"},
                                             {"up"}}) {
    Done done = cordon(words);
    EXPECT_EQ(done.status, 125) << testing::PrintToString(words);
    EXPECT_FALSE(done.err.empty()) << "it says why: " << testing::PrintToString(words);
    EXPECT_EQ(done.out, "");
  }
}

TEST(CommandLine, NoServiceIsSaidAlsoAsJson) {
  setenv("CORDON_AGENTS", "/tmp/cordon-no-such-socket", 1);
  Done done = cordon({"run", "--json", "--", "true"});
  EXPECT_EQ(done.status, 125);
  EXPECT_NE(done.err.find("/tmp/cordon-no-such-socket"), std::string::npos) << done.err;
  EXPECT_EQ(Json::parse(done.out)["error"]["reason"], "NOT_REACHABLE");
  unsetenv("CORDON_AGENTS");
}

TEST_F(CommandTest, RunPassesOutputOnAndMirrorsTheStatus) {
  v1::ExecRequest first;
  service.converse = [&](Stream& stream, grpc::ServerContext&) {
    stream.Read(&first);
    sendOutput(stream, v1::STDOUT, 0, std::string("out\0\xff\x1b", 6));
    sendOutput(stream, v1::STDERR, 0, "err");
    sendResult(stream, 42);
    return grpc::Status::OK;
  };
  Done done = cordon({"run", "--memory", "1G", "prog", "--memory"});
  EXPECT_EQ(done.status, 42);
  EXPECT_EQ(done.out, std::string("out\0\xff\x1b", 6)) << "not a byte is changed";
  EXPECT_EQ(done.err, "err") << "and nothing is said when nothing happened";
  EXPECT_EQ(first.run().exec().argv(1), "--memory");
  EXPECT_EQ(first.run().sandbox().limits().memory_bytes(), 1 << 30);
}

TEST_F(CommandTest, RunSaysWhatStoppedTheProgramInOneLine) {
  service.converse = [](Stream& stream, grpc::ServerContext&) {
    v1::ExecResponse response;
    response.mutable_result()->set_signal(9);
    v1::Verdict& verdict = *response.mutable_result()->mutable_verdict();
    verdict.set_control(v1::MEMORY);
    verdict.set_stopped(true);
    verdict.set_note("a\nb\x1b");
    stream.Write(response);
    return grpc::Status::OK;
  };
  Done done = cordon({"run", "prog"});
  EXPECT_EQ(done.status, 137);
  EXPECT_EQ(done.err, "cordon: stopped by memory; a\\nb\\x1b\n");
}

TEST_F(CommandTest, RunWithJsonKeepsTheOutputToItself) {
  service.converse = [](Stream& stream, grpc::ServerContext&) {
    sendOutput(stream, v1::STDOUT, 0, "out");
    sendResult(stream, 3);
    return grpc::Status::OK;
  };
  Done done = cordon({"run", "--json", "prog"});
  EXPECT_EQ(done.status, 3);
  EXPECT_EQ(done.err, "");
  EXPECT_EQ(Json::parse(done.out)["stdout"]["text"], "out");
}

TEST_F(CommandTest, AProgramThatDoesNotExistIs127) {
  service.converse = [](Stream& stream, grpc::ServerContext&) {
    v1::ExecResponse response;
    v1::StartFailure& failure = *response.mutable_result()->mutable_not_started();
    failure.set_error_number(ENOENT);
    failure.set_step("lookup");
    failure.set_message("no\x07 such program");
    stream.Write(response);
    return grpc::Status::OK;
  };
  Done done = cordon({"run", "prog"});
  EXPECT_EQ(done.status, 127);
  EXPECT_EQ(done.err, "cordon: no\\x07 such program\n");
}

TEST_F(CommandTest, SigtermCancelsTheProgram) {
  std::atomic<bool> serving = false;
  service.converse = [&](Stream& stream, grpc::ServerContext& context) {
    serving = true;
    return untilCancelled(stream, context);
  };
  std::thread killer([&] {
    while (!serving) std::this_thread::sleep_for(1ms);
    kill(getpid(), SIGTERM);
  });
  Done done = cordon({"run", "--json", "prog"});
  killer.join();
  EXPECT_EQ(done.status, 128 + SIGTERM);
  EXPECT_EQ(Json::parse(done.out)["error"]["code"], "CANCELLED");
  server->Shutdown();
  EXPECT_TRUE(service.cancelled);
}

TEST_F(CommandTest, AnErrorOfTheServiceIs125AndSafeToShow) {
  service.acquire = [](v1::AcquireResponse&) {
    v1::ErrorDetail detail;
    detail.set_reason("RUNTIME_UNAVAILABLE");
    detail.set_message("needs root\x1b[2J");
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "x", detail.SerializeAsString());
  };
  Done done = cordon({"acquire"});
  EXPECT_EQ(done.status, 125);
  EXPECT_EQ(done.err, "cordon: needs root\\x1b[2J (UNAVAILABLE, RUNTIME_UNAVAILABLE)\n");
}

TEST_F(CommandTest, AcquirePrintsTheId) {
  service.acquire = [](v1::AcquireResponse& response) {
    response.set_id("sb-a.t");
    response.mutable_sandbox()->set_name("sb-a");
    return grpc::Status::OK;
  };
  EXPECT_EQ(cordon({"acquire"}).out, "sb-a.t\n");
  Json json = Json::parse(cordon({"acquire", "--json"}).out);
  EXPECT_EQ(json["id"], "sb-a.t");
  EXPECT_EQ(json["sandbox"]["name"], "sb-a");
}

}  // namespace
}  // namespace cordon::cli
