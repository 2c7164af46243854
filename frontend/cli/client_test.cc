#include "frontend/cli/client.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>

#include "frontend/cli/fake_service.h"

namespace cordon::client {
namespace {

using namespace std::chrono_literals;
using testing_service::FakeService;
using testing_service::sendOutput;
using testing_service::sendResult;
using testing_service::Stream;
using testing_service::untilCancelled;

class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/cordon-client-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory = name;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socketPath(), grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    ASSERT_NE(server, nullptr);
  }
  void TearDown() override {
    server->Shutdown(std::chrono::system_clock::now() + 5s);
    unlink(socketPath().c_str());
    rmdir(directory.c_str());
  }
  std::string socketPath() const { return directory + "/agents.sock"; }
  Client client() const { return Client(socketPath()); }

  std::string directory;
  FakeService service;
  std::unique_ptr<grpc::Server> server;
};

TEST_F(ClientTest, CollectsOutputAndResult) {
  v1::ExecRequest first;
  service.converse = [&](Stream& stream, grpc::ServerContext&) {
    stream.Read(&first);
    v1::ExecResponse started;
    started.mutable_started()->set_name("sb-one");
    stream.Write(started);
    sendOutput(stream, v1::STDOUT, 0, "ab");
    sendOutput(stream, v1::STDERR, 0, "err");
    sendOutput(stream, v1::STDOUT, 2, "cd");
    sendResult(stream, 3);
    return grpc::Status::OK;
  };
  v1::SandboxSpec sandbox;
  sandbox.set_runtime("runc");
  Outcome outcome = client().run(sandbox, command({"prog", "arg"}), {});
  EXPECT_EQ(outcome.result.exit_code(), 3);
  EXPECT_EQ(outcome.name, "sb-one");
  EXPECT_EQ(outcome.out.bytes, "abcd");
  EXPECT_EQ(outcome.err.bytes, "err");
  EXPECT_FALSE(outcome.out.gapAt);
  EXPECT_EQ(first.run().sandbox().runtime(), "runc");
  EXPECT_EQ(first.run().exec().argv(1), "arg");
  EXPECT_FALSE(first.run().exec().stdin());
}

TEST_F(ClientTest, ShowsWhereBytesAreMissing) {
  service.converse = [](Stream& stream, grpc::ServerContext&) {
    sendOutput(stream, v1::STDOUT, 0, "head");
    sendOutput(stream, v1::STDOUT, 1000, "tail");
    sendResult(stream, 0);
    return grpc::Status::OK;
  };
  Outcome outcome = client().exec("sb.1", command({"p"}));
  EXPECT_EQ(outcome.out.bytes, "headtail");
  ASSERT_TRUE(outcome.out.gapAt);
  EXPECT_EQ(*outcome.out.gapAt, 4u);
}

TEST_F(ClientTest, KeepsNoMoreThanAsked) {
  service.converse = [](Stream& stream, grpc::ServerContext&) {
    for (uint64_t n = 0; n < 100; ++n) sendOutput(stream, v1::STDOUT, n * 10, "0123456789");
    sendResult(stream, 0);
    return grpc::Status::OK;
  };
  Streams streams;
  streams.collectCap = 25;
  Outcome outcome = client().exec("sb.1", command({"p"}), streams);
  EXPECT_EQ(outcome.out.bytes, "0123456789012345678901234");
  EXPECT_EQ(outcome.out.notKept, 975u);
}

// Reads the program's standard input to its end.
std::string readStdin(Stream& stream) {
  std::string all;
  v1::ExecRequest request;
  while (stream.Read(&request)) {
    if (request.has_close_stdin()) break;
    if (request.has_stdin()) all += request.stdin();
  }
  return all;
}

TEST_F(ClientTest, SendsStdinBytesInChunksAndThenItsEnd) {
  std::string given(300'000, 'x'), got;
  service.converse = [&](Stream& stream, grpc::ServerContext&) {
    got = readStdin(stream);
    sendResult(stream, 0);
    return grpc::Status::OK;
  };
  Streams streams;
  streams.stdinBytes = given;
  client().exec("sb.1", command({"p"}), streams);
  EXPECT_EQ(got, given);
}

TEST_F(ClientTest, PassesADescriptorOnUntilItsEnd) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::string got;
  service.converse = [&](Stream& stream, grpc::ServerContext&) {
    got = readStdin(stream);
    sendResult(stream, 0);
    return grpc::Status::OK;
  };
  std::thread writer([&] {
    for (int n = 0; n < 1000; ++n) ASSERT_EQ(write(ends[1], "0123456789", 10), 10);
    close(ends[1]);
  });
  Streams streams;
  streams.stdinFd = ends[0];
  client().exec("sb.1", command({"p"}), streams);
  writer.join();
  close(ends[0]);
  EXPECT_EQ(got.size(), 10'000u);
}

TEST_F(ClientTest, AProgramThatIgnoresAnOpenStdinEnds) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  service.converse = [](Stream& stream, grpc::ServerContext&) {
    sendResult(stream, 7);
    return grpc::Status::OK;
  };
  Streams streams;
  streams.stdinFd = ends[0];
  EXPECT_EQ(client().exec("sb.1", command({"p"}), streams).result.exit_code(), 7);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(ClientTest, AServiceThatDoesNotReadHoldsTheInputBack) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_GE(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  std::promise<void> go;
  service.converse = [&](Stream& stream, grpc::ServerContext&) {
    go.get_future().wait();
    sendResult(stream, 0);
    return grpc::Status::OK;
  };
  auto call = std::async(std::launch::async, [&] {
    Streams streams;
    streams.stdinFd = ends[0];
    return client().exec("sb.1", command({"p"}), streams);
  });
  // Writes until the pipe stays full: whatever is between has a bound.
  std::string chunk(65536, 'x');
  size_t taken = 0;
  auto lastMoved = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - lastMoved < 1s) {
    ssize_t count = write(ends[1], chunk.data(), chunk.size());
    if (count > 0) {
      taken += size_t(count);
      lastMoved = std::chrono::steady_clock::now();
      ASSERT_LT(taken, 64u << 20) << "no back-pressure";
    } else {
      std::this_thread::sleep_for(1ms);
    }
  }
  go.set_value();
  // A write that waits for the service must not keep the call from ending.
  ASSERT_EQ(call.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(call.get().result.exit_code(), 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(ClientTest, AnErrorCarriesReasonAndDetail) {
  service.acquire = [](v1::AcquireResponse&) {
    v1::ErrorDetail detail;
    detail.set_reason("LIMIT_TOO_HIGH");
    detail.set_subject("memoryBytes");
    detail.set_message("more than this host has");
    detail.set_limit(1 << 30);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "text", detail.SerializeAsString());
  };
  try {
    client().acquire({});
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.code(), "INVALID_ARGUMENT");
    EXPECT_EQ(error.reason(), "LIMIT_TOO_HIGH");
    EXPECT_EQ(error.subject(), "memoryBytes");
    EXPECT_STREQ(error.what(), "more than this host has");
    EXPECT_EQ(error.detail().limit(), 1u << 30);
  }
}

TEST_F(ClientTest, DetailsThatAreGarbageAreNoHarm) {
  service.acquire = [](v1::AcquireResponse&) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "plain text", std::string("\xff\xff\x01", 3));
  };
  try {
    client().acquire({});
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.code(), "INTERNAL");
    EXPECT_STREQ(error.what(), "plain text");
  }
}

TEST_F(ClientTest, AStopCancelsTheCall) {
  service.converse = untilCancelled;
  std::stop_source stop;
  Streams streams;
  streams.stop = stop.get_token();
  std::thread stopper([&] {
    std::this_thread::sleep_for(50ms);
    stop.request_stop();
  });
  try {
    client().exec("sb.1", command({"p"}), streams);
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.reason(), kStopped);
  }
  stopper.join();
  server->Shutdown();
  EXPECT_TRUE(service.cancelled);
}

TEST_F(ClientTest, AStopBeforeTheCallCancelsItToo) {
  service.converse = untilCancelled;
  std::stop_source stop;
  stop.request_stop();
  Streams streams;
  streams.stop = stop.get_token();
  EXPECT_THROW(client().exec("sb.1", command({"p"}), streams), ApiError);
}

TEST_F(ClientTest, ATimeoutEndsTheCall) {
  service.converse = untilCancelled;
  Streams streams;
  streams.timeout = 100ms;
  try {
    client().exec("sb.1", command({"p"}), streams);
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.code(), "DEADLINE_EXCEEDED");
  }
}

TEST_F(ClientTest, AStreamWithoutAResultIsAnError) {
  service.converse = [](Stream&, grpc::ServerContext&) { return grpc::Status::OK; };
  try {
    client().exec("sb.1", command({"p"}));
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.reason(), kNoResult);
  }
}

TEST_F(ClientTest, ACallbackThatThrowsCancelsTheProgram) {
  service.converse = [](Stream& stream, grpc::ServerContext& context) {
    sendOutput(stream, v1::STDOUT, 0, "x");
    return untilCancelled(stream, context);
  };
  Streams streams;
  streams.onOutput = [](v1::OutputStream, uint64_t, std::string_view) {
    throw std::runtime_error("closed");
  };
  EXPECT_THROW(client().exec("sb.1", command({"p"}), streams), std::runtime_error);
  server->Shutdown();
  EXPECT_TRUE(service.cancelled);
}

TEST_F(ClientTest, SignalsReachTheServiceWhileItRuns) {
  int got = 0;
  service.converse = [&](Stream& stream, grpc::ServerContext&) {
    v1::ExecRequest request;
    while (stream.Read(&request) && !request.has_signal()) {
    }
    got = request.signal();
    sendResult(stream, 0);
    return grpc::Status::OK;
  };
  std::function<bool(int)> sender;
  Streams streams;
  streams.onSignalSender = [&](std::function<bool(int)> send) {
    sender = send;
    EXPECT_TRUE(send(15));
  };
  client().exec("sb.1", command({"p"}), streams);
  EXPECT_EQ(got, 15);
  EXPECT_FALSE(sender(15)) << "the call is over";
}

TEST(ClientAddress, NobodyThereIsSaidAtOnceAndClearly) {
  auto begin = std::chrono::steady_clock::now();
  try {
    Client("/tmp/cordon-no-such-socket").list();
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.reason(), kNotReachable);
    EXPECT_NE(std::string(error.what()).find("/tmp/cordon-no-such-socket"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
}

TEST(ClientAddress, OtherFormsAreRefused) {
  for (const std::string& address : {std::string("localhost:1"), std::string("unix:relative"),
                                     std::string(), "/" + std::string(200, 'a')}) {
    EXPECT_THROW(Client client(address), ApiError) << address;
  }
}

TEST(ClientAddress, ComesFromTheEnvironment) {
  setenv("CORDON_AGENTS", "/somewhere/a.sock", 1);
  EXPECT_EQ(agentsAddress(), "/somewhere/a.sock");
  setenv("CORDON_AGENTS", "", 1);
  EXPECT_EQ(agentsAddress(), "unix:/run/cordon/agents.sock");
  unsetenv("CORDON_AGENTS");
  EXPECT_EQ(agentsAddress(), "unix:/run/cordon/agents.sock");
}

}  // namespace
}  // namespace cordon::client
