// The service itself as the runner's client: gRPC by the command line's library.
#pragma once
#include <memory>
#include <string>

#include "escape_suite/client.h"

namespace cordon::escape {

// `address` as in frontend/cli/client.h (unix:/path); "" = CORDON_AGENTS or the
// default. Nothing is connected yet. Throws ClientError (fatal) for an address
// that is none.
std::unique_ptr<SandboxClient> makeGrpcClient(const std::string& address);

}  // namespace cordon::escape
