// Requests: those that are refused with a reason, and the plain calls.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "frontend/agents/agents_fixture.h"

namespace cordon::agents {
namespace {

TEST_F(AgentsTest, BadRequestsGetAReasonAndReachNobody) {
  auto id = acquire();
  auto acquired = broker_->acquired.load();
  struct Case {
    const char* reason;
    std::function<void(v1::ExecSpec&)> change;
  };
  const Case cases[] = {
      {"ARGV_EMPTY", [](auto& spec) { spec.clear_argv(); }},
      {"ARGV_EMPTY", [](auto& spec) { spec.set_argv(0, ""); }},
      {"ARGV_NUL", [](auto& spec) { spec.set_argv(0, std::string("a\0b", 3)); }},
      {"ARGV_TOO_LONG", [](auto& spec) { spec.add_argv(std::string(2 << 20, 'a')); }},
      {"ARGV_TOO_LONG", [](auto& spec) { spec.add_argv(std::string(131072, 'a')); }},
      {"ARGV_TOO_MANY",
       [](auto& spec) {
         for (int i = 0; i < 10000; ++i) spec.add_argv("a");
       }},
      {"ARGS_TOO_LARGE",
       [](auto& spec) {
         for (int i = 0; i < 9; ++i) spec.add_argv(std::string(130000, 'a'));
       }},
      {"ENV_MALFORMED", [](auto& spec) { spec.add_env("NOEQUALS"); }},
      {"ENV_MALFORMED", [](auto& spec) { spec.add_env("=value"); }},
      {"ENV_NUL", [](auto& spec) { spec.add_env(std::string("A=\0", 3)); }},
      {"CWD_NUL", [](auto& spec) { spec.set_cwd(std::string("/\0", 2)); }},
      {"CWD_TOO_LONG", [](auto& spec) { spec.set_cwd(std::string(5000, '/')); }},
      {"BAD_USER", [](auto& spec) { spec.set_user("a:b"); }},
      {"BAD_USER", [](auto& spec) { spec.set_user("../root"); }},
      {"BAD_USER", [](auto& spec) { spec.set_user("4294967295"); }},
      {"LIMIT_ZERO", [](auto& spec) { spec.mutable_limits()->set_wall_ms(0); }},
      {"LIMIT_NEGATIVE", [](auto& spec) { spec.mutable_limits()->set_cpu_time_ms(-1); }},
      {"LIMIT_TOO_HIGH", [](auto& spec) { spec.mutable_limits()->set_files(int64_t{1} << 33); }},
      {"LIMIT_NOT_PER_EXEC", [](auto& spec) { spec.mutable_limits()->set_memory_bytes(1 << 20); }},
      {"EXEC_LIMIT_TOO_WIDE", [](auto& spec) { spec.mutable_limits()->set_wall_ms(60'001); }},
      {"EXEC_LIMIT_TOO_WIDE", [](auto& spec) { spec.mutable_limits()->set_files(1000); }},
  };
  for (auto& item : cases) {
    auto spec = command({"prog"});
    item.change(spec);
    auto outcome = exec(id, spec);
    EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << item.reason;
    EXPECT_EQ(outcome.reason, item.reason) << outcome.status.error_message();
    v1::ErrorDetail detail;
    EXPECT_TRUE(detail.ParseFromString(outcome.status.error_details()));
    EXPECT_EQ(detail.reason(), item.reason);
    EXPECT_FALSE(detail.subject().empty()) << item.reason;
    auto asRun = run({}, spec);
    EXPECT_EQ(asRun.reason, item.reason);
  }
  // Only a limit that must be compared with a sandbox's gets as far as one.
  EXPECT_EQ(broker_->acquired - acquired, 2);
  EXPECT_EQ(broker_->destroyed, 2);
  EXPECT_EQ(broker_->begun, broker_->ended);

  for (auto bad :
       {"", "sb-x", "sb-aaaaaaaaab.zz", "sb-AAAAAAAAAA.00000000000000000000000000000001"}) {
    EXPECT_EQ(exec(bad, command({"prog"})).reason, "BAD_ID") << bad;
  }
  auto other = id;
  other.back() = other.back() == '0' ? '1' : '0';
  EXPECT_EQ(exec(other, command({"prog"})).status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(exec(other, command({"prog"})).reason, "NO_SUCH_SANDBOX");

  for (auto zero : {int64_t{0}, int64_t{-5}}) {
    v1::SandboxSpec spec;
    spec.mutable_limits()->set_memory_bytes(zero);
    EXPECT_EQ(run(spec, command({"prog"})).reason, zero == 0 ? "LIMIT_ZERO" : "LIMIT_NEGATIVE");
  }
  broker_->refuseAcquire(rpc::Code::INVALID_ARGUMENT, rpc::Reason::SCRATCH_EXCEEDS_MEMORY, "no");
  EXPECT_EQ(run({}, command({"prog"})).reason, "SCRATCH_EXCEEDS_MEMORY");
  broker_->refuseAcquire(rpc::Code::RESOURCE_EXHAUSTED, rpc::Reason::TOO_MANY_SANDBOXES, "no");
  auto full = run({}, command({"prog"}));
  EXPECT_EQ(full.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(full.reason, "TOO_MANY_SANDBOXES");
}

TEST_F(AgentsTest, CompressedRequestsAreRefused) {
  auto id = acquire();
  auto before = agents_->statusKb("VmHWM:");
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  auto stream = stub_->Exec(&context);
  // About 300 KiB on the wire.
  stream->Write(startRequest(id, command({std::string(300 << 20, 'a')})));
  EXPECT_EQ(collect(context, *stream).status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_LT(agents_->statusKb("VmHWM:"), before + 32 * 1024) << "KiB, from " << before;
  EXPECT_EQ(broker_->begun, 0);
}

TEST_F(AgentsTest, RequestsOutOfSequence) {
  broker_->setScript(untilKilled);
  auto id = acquire();
  v1::ExecRequest request;
  request.set_stdin("x");
  EXPECT_EQ(exec(id, command({"prog"}), {request}).reason, "STDIN_NOT_OPEN");
  request.set_signal(65);
  EXPECT_EQ(exec(id, command({"prog"}), {request}).reason, "BAD_SIGNAL");
  EXPECT_EQ(exec(id, command({"prog"}), {startRequest(id, command({"prog"}))}).reason,
            "BAD_SEQUENCE");
  EXPECT_EQ(exec(id, command({"prog"}), {v1::ExecRequest()}).reason, "BAD_SEQUENCE");
  auto withStdin = command({"prog"});
  withStdin.set_stdin(true);
  request.set_stdin(std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(exec(id, withStdin, {request}).reason, "STDIN_TOO_LARGE");
  {
    grpc::ClientContext context;
    auto stream = stub_->Exec(&context);
    stream->WritesDone();
    EXPECT_EQ(collect(context, *stream).reason, "BAD_SEQUENCE");
  }
  {
    grpc::ClientContext context;
    auto stream = stub_->Run(&context);
    stream->Write(startRequest(id, command({"prog"})));
    EXPECT_EQ(collect(context, *stream).reason, "BAD_SEQUENCE");
  }
  EXPECT_TRUE(eventually([&] { return broker_->begun == broker_->ended; }));
}

TEST_F(AgentsTest, ListsPageByPage) {
  std::set<std::string> all, seen;
  for (int i = 0; i < 5; ++i) all.insert(acquire().substr(0, 13));
  v1::ListRequest request;
  request.set_page_size(2);
  size_t pages = 0;
  do {
    grpc::ClientContext context;
    v1::ListResponse page;
    ASSERT_TRUE(stub_->List(&context, request, &page).ok());
    ASSERT_LE(page.sandboxes_size(), 2);
    for (const auto& info : page.sandboxes()) {
      EXPECT_TRUE(seen.insert(info.name()).second) << "twice: " << info.name();
    }
    request.set_page_token(page.next_page_token());
    ASSERT_LE(++pages, 3u);
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3u);
  EXPECT_EQ(seen, all);

  auto reasonOf = [&](int32_t size, const std::string& token) {
    grpc::ClientContext context;
    v1::ListResponse none;
    request.set_page_size(size);
    request.set_page_token(token);
    EXPECT_EQ(stub_->List(&context, request, &none).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    return agents::reason(context);
  };
  EXPECT_EQ(reasonOf(-1, ""), "BAD_PAGE_SIZE");
  EXPECT_EQ(reasonOf(501, ""), "BAD_PAGE_SIZE");
  EXPECT_EQ(reasonOf(2, "sb-aaaaaaaaaa.0"), "BAD_PAGE_TOKEN");
  EXPECT_EQ(reasonOf(2, "../aaaaaaaaaa"), "BAD_PAGE_TOKEN");
}

TEST_F(AgentsTest, ReleaseInspectListRuntimes) {
  auto id = acquire();
  {
    grpc::ClientContext context;
    v1::InspectRequest request;
    request.set_id(id);
    v1::InspectResponse response;
    auto status = stub_->Inspect(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.sandbox().name(), id.substr(0, 13));
    EXPECT_EQ(response.sandbox().state(), "ready");
    EXPECT_EQ(response.sandbox().limits().wall_ms(), 60'000);
  }
  {
    grpc::ClientContext context;
    v1::ListResponse response;
    ASSERT_TRUE(stub_->List(&context, {}, &response).ok());
    ASSERT_EQ(response.sandboxes_size(), 1);
    EXPECT_EQ(response.SerializeAsString().find(id.substr(14)), std::string::npos) << "a token";
  }
  {
    grpc::ClientContext context;
    v1::RuntimesResponse response;
    ASSERT_TRUE(stub_->Runtimes(&context, {}, &response).ok());
    ASSERT_EQ(response.runtimes_size(), 1);
    EXPECT_FALSE(response.one_trust_zone());
  }
  v1::ReleaseRequest request;
  request.set_id(id);
  {
    grpc::ClientContext context;
    v1::ReleaseResponse response;
    ASSERT_TRUE(stub_->Release(&context, request, &response).ok());
    EXPECT_TRUE(response.receipt().complete());
  }
  {
    grpc::ClientContext context;
    v1::ReleaseResponse response;
    EXPECT_EQ(stub_->Release(&context, request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_EQ(broker_->destroyed, 1);
}

}  // namespace
}  // namespace cordon::agents
