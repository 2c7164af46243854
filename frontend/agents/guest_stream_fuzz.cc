// What vm-agent might say on a stream, to the decoder that the frontend uses:
// whole conversations, in pieces. Aborts when the decoder breaks a promise of
// guest_stream.h.
#include <string.h>

#include <algorithm>
#include <utility>

#include "frontend/agents/guest_stream.h"
#include "ipc/guest.capnp.h"
#include "tests/fuzz/frame_input.h"
#include "tests/fuzz/fuzz.h"

namespace cordon::fuzz {
namespace {

constexpr uint32_t kExec = 7;

void require(bool holds) {
  if (!holds) abort();
}

class Sink final : public agents::GuestSink {
 public:
  explicit Sink(size_t input) : input_(input) {}
  ~Sink() noexcept(false) override {}

  void onStarted() override { require(!ended_ && ++started_ == 1); }
  bool onOutput(unsigned stream, uint64_t offset, grpc::Slice bytes, size_t cost) override {
    require(!ended_ && stream < 2 && bytes.size() > 0 && cost >= bytes.size());
    require(offset >= end_[stream]);
    end_[stream] = offset + bytes.size();
    for (auto byte : bytes) sum_ += byte;
    delivered_ += bytes.size();
    require(delivered_ <= input_);
    return delivered_ % 2 == 0;
  }
  void onCredit(uint32_t bytes) override { require(!ended_ && bytes > 0); }
  void onExited(agents::GuestExit exit) override {
    require(!std::exchange(ended_, true));
    for (int i = 0; i < 2; ++i) require(exit.streams[i].total >= end_[i]);
    require(exit.signaled ? exit.code >= 1 && exit.code <= 64 : exit.code <= 255);
  }
  void onFailed(agents::GuestFailure failure) override {
    require(!std::exchange(ended_, true) && started_ == 0 && delivered_ == 0);
    require(failure.step != nullptr);
  }

 private:
  const size_t input_;
  bool ended_ = false;
  int started_ = 0;
  uint64_t end_[2] = {0, 0};
  uint64_t delivered_ = 0, sum_ = 0;
};

template <typename Fill>
std::string message(Fill&& fill) {
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<guest::GuestMessage>());
  return frame(builder);
}

}  // namespace

std::vector<std::string> corpus() {
  auto hello = message([](auto m) { m.initHello().setVersion(guest::PROTOCOL_VERSION); });
  auto started = message([](auto m) { m.setStarted(kExec); });
  auto output = [](uint64_t offset, size_t size) {
    return message([&](auto m) {
      auto out = m.initOutput();
      out.setExec(kExec);
      out.setOffset(offset);
      memset(out.initBytes(static_cast<kj::uint>(size)).begin(), 'x', size);
    });
  };
  auto credit = message([](auto m) {
    auto c = m.initStdinCredit();
    c.setExec(kExec);
    c.setBytes(4096);
  });
  auto exited = message([](auto m) {
    auto e = m.initExited();
    e.setExec(kExec);
    e.initStdout().setTotal(uint64_t{1} << 40);
    auto scratch = e.initScratch(2);
    scratch[0].setPath("/work");
    scratch[1].setPath("/tmp");
    e.setFileAtLimit("/work/file");
  });
  auto failed = message([](auto m) {
    auto f = m.initFailed();
    f.setExec(kExec);
    f.setErrno(2);
    f.setStep(guest::FailStep::LOOKUP);
  });
  return {hello + started + output(0, 100) + credit + output(100, 6000) + exited,
          hello + output(0, 60000) + output(60000, 60000) + exited + exited, hello + failed,
          hello + started + credit + exited, hello + hello};
}

// Lengths that fit and the magic, frame by frame.
void repair(std::string& input) {
  input.resize((input.size() + 7) / 8 * 8);
  for (size_t at = 0; at + 16 <= input.size();) {
    uint32_t length;
    memcpy(&length, input.data() + at, sizeof length);
    length = std::clamp<uint32_t>(length / 8 * 8, 8, guest::MAX_FRAME_BYTES);
    length = std::min(length, static_cast<uint32_t>(input.size() - at - 8));
    const uint32_t header[2] = {length, ipc::kFrameMagic};
    memcpy(input.data() + at, header, sizeof header);
    at += 8 + length;
  }
}

}  // namespace cordon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cordon;
  fuzz::Sink sink(size);
  agents::GuestStream stream(sink, fuzz::kExec, size % 2 == 0);
  stream.started();
  size_t piece = size > 0 ? size_t{1} + data[size - 1] * 37u : 1;
  for (size_t at = 0; at < size;) {
    auto space = stream.space();
    fuzz::require(space.size() > 0 && space.size() <= 256 * 1024);
    size_t n = std::min({space.size(), size - at, piece});
    memcpy(space.begin(), data + at, n);
    at += n;
    bool good = stream.commit(n);
    fuzz::require(good == (stream.fault() == agents::GuestFault::kNone));
    fuzz::require(stream.credit() <= agents::GuestStream::kMaxCredit);
    if (!good) {
      // Final: what comes after it is not decoded.
      auto fault = stream.fault();
      auto more = stream.space();
      memset(more.begin(), 0, std::min<size_t>(more.size(), 64));
      fuzz::require(!stream.commit(std::min<size_t>(more.size(), 64)) && stream.fault() == fault);
      return 0;
    }
  }
  return 0;
}
