// The gRPC half of an Exec or Run call: reads requests, writes responses, on
// gRPC's threads. Everything else is ExecCall's, on the loop thread.
//
// The reactor exists until OnDone. It reports to the ExecCalls by the call's
// number, so that nothing of it is touched after the call has ended; the
// ExecCall calls it only before its own finish().
#pragma once
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <mutex>

#include "frontend/agents/errors.h"

namespace cordon::agents {

class ExecCalls;

class ExecReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `run`: the call is Run, else Exec. Reads the first request at once.
  ExecReactor(ExecCalls& calls, grpc::CallbackServerContext& context, uint32_t uid, bool run);

  // --- The loop thread, between open and finish().

  // Reads one more request, which comes to ExecCall as request() or halfClosed().
  void readNext();
  // Sends a message after those before it; each is answered by writeDone().
  void write(grpc::ByteBuffer message);
  // Ends the call, with a last message if `last` is not empty. No write may be
  // outstanding. The reactor is gone after this.
  void finish(grpc::ByteBuffer last, const grpc::Status& status);
  void finish(const CallError& error);
  // The client has cancelled, also before anybody listened.
  bool isCancelled() const { return context_.IsCancelled(); }
  // Makes every outstanding operation fail.
  void cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

  void first(bool ok);
  void next(bool ok);

  ExecCalls& calls_;
  grpc::CallbackServerContext& context_;
  const uint32_t uid_;
  const bool run_;
  const uint64_t number_;
  bool opened_ = false;  // reads come one after the other

  grpc::ByteBuffer incoming_;
  std::mutex mutex_;
  bool writing_ = false;
  grpc::ByteBuffer current_;            // while writing_
  std::deque<grpc::ByteBuffer> ready_;  // to follow it
  grpc::ByteBuffer last_;
};

}  // namespace cordon::agents
