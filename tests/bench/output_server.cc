// The bare server of the output benchmark: streams bytes by gRPC and does
// nothing else.
//
//   output-server SOCKET BYTES MESSAGE-BYTES
//
// Answers "ready" to the first line on stdin once it serves, and ends at end of
// file there.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "ipc/agent.grpc.pb.h"

namespace {

namespace v1 = cordon::v1;

class Source final : public v1::Agents::Service {
 public:
  Source(uint64_t bytes, size_t messageBytes) : total(bytes), size(messageBytes) {}

  grpc::Status Run(grpc::ServerContext*,
                   grpc::ServerReaderWriter<v1::ExecResponse, v1::ExecRequest>* stream) override {
    v1::ExecResponse response;
    std::string* data = response.mutable_output()->mutable_data();
    for (uint64_t sent = 0; sent < total; sent += data->size()) {
      data->resize(static_cast<size_t>(std::min<uint64_t>(size, total - sent)));
      response.mutable_output()->set_offset(sent);
      if (!stream->Write(response)) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

 private:
  uint64_t total;
  size_t size;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: output-server SOCKET BYTES MESSAGE-BYTES\n";
    return 2;
  }
  Source source(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(std::string("unix:") + argv[1], grpc::InsecureServerCredentials());
  builder.RegisterService(&source);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server) {
    std::cerr << "output-server: can't listen at " << argv[1] << '\n';
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) std::cout << "ready" << std::endl;
  server->Shutdown();
  return 0;
}
