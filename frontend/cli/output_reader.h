// The output in a response of Exec or Run, read where it lies: to have it
// parsed would copy every byte once more.
#pragma once
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <string_view>

#include "ipc/agent.pb.h"

namespace cordon::client {

using OnPiece = std::function<void(v1::OutputStream, uint64_t offset, std::string_view bytes)>;

// Calls `onPiece` with the pieces of an ExecResponse that is output, in order.
// False, and nothing called: it is something else, or output in another form
// than the service gives it; to be parsed. `message` stays as it is.
bool readOutput(grpc::ByteBuffer& message, const OnPiece& onPiece);

}  // namespace cordon::client
