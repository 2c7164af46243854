#include "broker/main/failure.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace cordon::broker {

namespace {
rpc::Code codeOf(rpc::Reason reason) {
  switch (reason) {
    case rpc::Reason::LIMIT_TOO_LOW:
    case rpc::Reason::LIMIT_TOO_HIGH:
    case rpc::Reason::SCRATCH_EXCEEDS_MEMORY:
    case rpc::Reason::UNKNOWN_RUNTIME:
    case rpc::Reason::UNKNOWN_IMAGE:
    case rpc::Reason::UNSUPPORTED:
    case rpc::Reason::UNKNOWN_SECCOMP_PROFILE:
    case rpc::Reason::SECCOMP_NOT_APPLIED:
    case rpc::Reason::BAD_NAME:
    case rpc::Reason::EXEC_LIMIT_TOO_WIDE:
    case rpc::Reason::SNAPSHOT_DOES_NOT_FIT:
      return rpc::Code::INVALID_ARGUMENT;
    case rpc::Reason::NO_SUCH_SANDBOX:
    case rpc::Reason::NO_SUCH_EXEC:
    case rpc::Reason::NO_SUCH_SNAPSHOT:
      return rpc::Code::NOT_FOUND;
    case rpc::Reason::TOO_MANY_SANDBOXES:
    case rpc::Reason::TOO_MANY_EXECS:
    case rpc::Reason::TOO_MANY_SNAPSHOTS:
    case rpc::Reason::SNAPSHOT_TOO_LARGE:
    case rpc::Reason::SNAPSHOT_BUSY:
    case rpc::Reason::HOST_LIMIT:
    case rpc::Reason::ID_RANGES_EXHAUSTED:
    case rpc::Reason::STATE_FULL:
      return rpc::Code::RESOURCE_EXHAUSTED;
    case rpc::Reason::RUNTIME_NOT_ALLOWED:
    case rpc::Reason::IMAGE_REFUSED:
    case rpc::Reason::SANDBOX_GONE:
    case rpc::Reason::LIMIT_NOT_APPLIED:
    case rpc::Reason::SNAPSHOT_DAMAGED:
    case rpc::Reason::SNAPSHOT_MISMATCH:
      return rpc::Code::FAILED_PRECONDITION;
    case rpc::Reason::RUNTIME_UNAVAILABLE:
    case rpc::Reason::RUNTIME_FAILED:
    case rpc::Reason::RUNTIME_TIMEOUT:
    case rpc::Reason::AGENT_UNRESPONSIVE:
    case rpc::Reason::SHUTTING_DOWN:
    case rpc::Reason::SNAPSHOT_FAILED:
      return rpc::Code::UNAVAILABLE;
    case rpc::Reason::NONE:
      break;
  }
  return rpc::Code::INTERNAL;
}
}  // namespace

Failure failure(rpc::Reason reason, std::string detail, int error) {
  Failure result;
  result.code = codeOf(reason);
  result.reason = reason;
  result.detail = std::move(detail);
  result.error = error;
  return result;
}

void write(rpc::Status::Builder status, const Failure& failure) {
  status.setCode(failure.code);
  status.setReason(failure.reason);
  status.setSubject(failure.subject);
  status.setDetail(failure.detail);
  status.setLimit(failure.limit);
  status.setErrno(failure.error);
}

void writeOk(rpc::Status::Builder status) {
  status.setCode(rpc::Code::OK);
}

Failure fault(const char* operation, const kj::Exception& exception) {
  spdlog::error("{}: {}:{}: {}", operation, exception.getFile(), exception.getLine(),
                exception.getDescription().cStr());
  // What KJ makes of EMFILE, ENFILE, ENOMEM, ENOSPC and their like.
  if (exception.getType() == kj::Exception::Type::OVERLOADED) {
    return failure(rpc::Reason::HOST_LIMIT,
                   "the host ran out of something; the broker's log says of what");
  }
  Failure result;
  result.detail = "the broker failed; its log says why";
  return result;
}

}  // namespace cordon::broker
