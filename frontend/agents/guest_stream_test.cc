#include "frontend/agents/guest_stream.h"

#include <gtest/gtest.h>
#include <string.h>

#include <functional>
#include <optional>

#include "frontend/agents/output_message.h"
#include "ipc/agent.pb.h"
#include "ipc/framing.h"
#include "ipc/guest.capnp.h"

namespace cordon::agents {
namespace {

constexpr uint32_t kExec = 3;

struct Sink final : GuestSink {
  ~Sink() noexcept(false) override {}
  void onStarted() override { ++started; }
  bool onOutput(unsigned stream, uint64_t offset, grpc::Slice bytes, size_t cost) override {
    EXPECT_GE(cost, bytes.size());
    if (dropping[stream]) return false;
    charged += cost;
    offsets.push_back(offset);
    out[stream].append(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
    kept.push_back(std::move(bytes));
    return true;
  }
  void onCredit(uint32_t bytes) override { credit += bytes; }
  void onExited(GuestExit e) override { exit = std::move(e); }
  void onFailed(GuestFailure f) override { failure = f; }

  int started = 0;
  std::string out[2];
  std::vector<uint64_t> offsets;
  std::vector<grpc::Slice> kept;
  bool dropping[2] = {false, false};
  size_t charged = 0;
  uint64_t credit = 0;
  std::optional<GuestExit> exit;
  std::optional<GuestFailure> failure;
};

using Fill = std::function<void(guest::GuestMessage::Builder)>;

std::string bytesOf(const Fill& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<guest::GuestMessage>());
  auto frame = ipc::frameMessage(message);
  return {reinterpret_cast<const char*>(frame.asBytes().begin()), frame.asBytes().size()};
}

std::string hello(uint32_t version = guest::PROTOCOL_VERSION) {
  return bytesOf([=](auto m) { m.initHello().setVersion(version); });
}
std::string started(uint32_t exec = kExec) {
  return bytesOf([=](auto m) { m.setStarted(exec); });
}
std::string output(uint64_t offset, const std::string& bytes, unsigned stream = 0) {
  return bytesOf([&](auto m) {
    auto out = m.initOutput();
    out.setExec(kExec);
    out.setStream(static_cast<guest::OutputStream>(stream));
    out.setOffset(offset);
    out.setBytes({reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()});
  });
}
std::string credit(uint32_t bytes) {
  return bytesOf([=](auto m) {
    auto c = m.initStdinCredit();
    c.setExec(kExec);
    c.setBytes(bytes);
  });
}
std::string exited(const std::function<void(guest::Exited::Builder)>& more = nullptr) {
  return bytesOf([&](auto m) {
    auto e = m.initExited();
    e.setExec(kExec);
    e.initStdout().setTotal(1'000'000);
    e.initStderr().setTotal(1'000'000);
    if (more) more(e);
  });
}
std::string failed(uint32_t error = ENOENT) {
  return bytesOf([=](auto m) {
    auto f = m.initFailed();
    f.setExec(kExec);
    f.setErrno(error);
    f.setStep(guest::FailStep::LOOKUP);
  });
}

// Feeds it in pieces and returns the fault.
GuestFault feed(GuestStream& stream, const std::string& bytes, size_t piece = SIZE_MAX) {
  for (size_t at = 0; at < bytes.size();) {
    auto space = stream.space();
    size_t n = std::min({space.size(), bytes.size() - at, piece});
    memcpy(space.begin(), bytes.data() + at, n);
    at += n;
    if (!stream.commit(n)) break;
  }
  return stream.fault();
}

GuestFault faultOf(const std::string& bytes, bool withStdin = false, bool start = true) {
  Sink sink;
  GuestStream stream(sink, kExec, withStdin);
  if (start) stream.started();
  return feed(stream, bytes);
}

// The same message with `words` of padding behind it, in its one segment.
std::string padded(const std::string& frame, size_t words) {
  std::string out = frame + std::string(words * 8, '\0');
  auto add = [&](size_t at, size_t more) {
    uint32_t value;
    memcpy(&value, out.data() + at, sizeof value);
    value += static_cast<uint32_t>(more);
    memcpy(out.data() + at, &value, sizeof value);
  };
  add(0, words * 8);                       // the frame's length
  add(ipc::kFrameHeaderBytes + 4, words);  // the segment's
  return out;
}

TEST(GuestStream, AWholeConversationInPiecesOfAnySize) {
  std::string big(60'000, 'b');
  auto all = hello() + started() + output(0, "small") + output(5, big) + output(0, "err", 1) +
             output(60'005, big) + exited([](auto e) {
               e.setCode(9);
               e.setLeftRunning(2);
               auto scratch = e.initScratch(1);
               scratch[0].setPath("/work");
               scratch[0].setFreeBytes(7);
             });
  for (size_t piece : {size_t{1}, size_t{7}, size_t{8}, size_t{4096}, size_t{100'000}}) {
    Sink sink;
    GuestStream stream(sink, kExec, false);
    stream.started();
    ASSERT_EQ(feed(stream, all, piece), GuestFault::kNone) << piece;
    EXPECT_EQ(sink.started, 1);
    EXPECT_EQ(sink.out[0], "small" + big + big);
    EXPECT_EQ(sink.out[1], "err");
    // What was given out stays as it was, whatever was read later.
    std::string kept;
    for (auto& slice : sink.kept) {
      kept.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    EXPECT_EQ(kept, "small" + big + "err" + big);
    ASSERT_TRUE(sink.exit);
    EXPECT_EQ(sink.exit->code, 9u);
    EXPECT_EQ(sink.exit->leftRunning, 2u);
    ASSERT_EQ(sink.exit->scratch.size(), 1u);
    EXPECT_EQ(sink.exit->scratch[0].freeBytes, 7u);
    EXPECT_TRUE(stream.ended());
  }
}

// A piece of 4 KiB holds its buffer of 256 KiB; the rest of each buffer is
// filled with frames that cost nothing by themselves.
TEST(GuestStream, WhatAPieceHoldsIsChargedWhateverSurroundsIt) {
  constexpr size_t kBuffer = 256 * 1024;
  constexpr size_t kPadding = (60 * 1024) / 8;
  std::string piece(4096, 'p');
  struct Filler {
    const char* what;
    std::function<std::string(uint64_t&)> make;
  };
  const Filler fillers[] = {
      {"outputs of one byte", [](uint64_t& at) { return padded(output(at++, "x", 1), kPadding); }},
      {"credit", [](uint64_t&) { return padded(credit(1), kPadding); }},
  };
  for (auto& filler : fillers) {
    for (bool dropping : {false, true}) {
      SCOPED_TRACE(testing::Message() << filler.what << (dropping ? ", dropped" : ""));
      Sink sink;
      sink.dropping[1] = dropping;
      GuestStream stream(sink, kExec, true);
      stream.started();
      uint64_t other = 0;
      size_t fed = 0;
      ASSERT_EQ(feed(stream, hello() + started()), GuestFault::kNone);
      for (size_t i = 0; i < 16; ++i) {
        auto round = output(i * piece.size(), piece);
        for (int k = 0; k < 4; ++k) round += filler.make(other);
        ASSERT_EQ(feed(stream, round), GuestFault::kNone);
        fed += round.size();
      }
      EXPECT_GE(sink.charged + kBuffer, fed);
      EXPECT_LE(sink.charged, 2 * fed);
    }
  }
}

TEST(GuestStream, SmallOutputsAreCopiedAndCostWhatTheyTake) {
  Sink sink;
  GuestStream stream(sink, kExec, false);
  stream.started();
  std::string all = hello() + started();
  for (uint64_t i = 0; i < 1000; ++i) all += padded(output(i, "x"), 100);
  ASSERT_EQ(feed(stream, all), GuestFault::kNone);
  EXPECT_LE(sink.charged, size_t{1000} * 256);
}

TEST(GuestStream, OutputAndExitNeedNoStarted) {
  EXPECT_EQ(faultOf(hello() + output(0, "x") + exited()), GuestFault::kNone);
  EXPECT_EQ(faultOf(hello() + exited()), GuestFault::kNone);
  EXPECT_EQ(faultOf(hello() + failed()), GuestFault::kNone);
  // A gap is what the agent dropped.
  EXPECT_EQ(faultOf(hello() + output(0, "x") + output(500, "y") + exited()), GuestFault::kNone);
}

TEST(GuestStream, Sequence) {
  EXPECT_EQ(faultOf(started()), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello() + hello()), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello(), false, false), GuestFault::kNone);
  EXPECT_EQ(faultOf(hello() + started(), false, false), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello() + started() + started()), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello() + output(0, "x") + started()), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello() + started() + failed()), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello() + exited() + exited()), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello() + exited() + output(0, "x")), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello() + failed() + exited()), GuestFault::kBadSequence);
  EXPECT_EQ(faultOf(hello(2)), GuestFault::kBadVersion);
  EXPECT_EQ(faultOf(hello() + started(kExec + 1)), GuestFault::kWrongExec);
}

TEST(GuestStream, Offsets) {
  EXPECT_EQ(faultOf(hello() + output(0, "")), GuestFault::kBadOffset);
  EXPECT_EQ(faultOf(hello() + output(0, "abc") + output(2, "d")), GuestFault::kBadOffset);
  EXPECT_EQ(faultOf(hello() + output(10, "abc") + output(0, "d")), GuestFault::kBadOffset);
  EXPECT_EQ(faultOf(hello() + output(UINT64_MAX, "a")), GuestFault::kBadOffset);
  EXPECT_EQ(faultOf(hello() + output(10, "abc") + output(0, "d", 1)), GuestFault::kNone);
}

TEST(GuestStream, Credit) {
  EXPECT_EQ(faultOf(hello() + credit(1), false), GuestFault::kBadCredit);
  EXPECT_EQ(faultOf(hello() + credit(0), true), GuestFault::kBadCredit);
  EXPECT_EQ(faultOf(hello() + credit(GuestStream::kMaxCredit), true), GuestFault::kBadCredit);
  Sink sink;
  GuestStream stream(sink, kExec, true);
  stream.started();
  EXPECT_EQ(stream.credit(), guest::STDIN_WINDOW);
  stream.spent(1000);
  EXPECT_EQ(feed(stream, hello() + credit(600)), GuestFault::kNone);
  EXPECT_EQ(stream.credit(), guest::STDIN_WINDOW - 400u);
}

TEST(GuestStream, ImpossibleEnds) {
  EXPECT_EQ(faultOf(hello() + exited([](auto e) { e.setCode(256); })), GuestFault::kBadExit);
  EXPECT_EQ(faultOf(hello() + exited([](auto e) { e.setSignaled(true); })), GuestFault::kBadExit);
  EXPECT_EQ(faultOf(hello() + exited([](auto e) { e.setLeftRunning(70'000); })),
            GuestFault::kBadExit);
  EXPECT_EQ(faultOf(hello() + exited([](auto e) { e.initScratch(17); })), GuestFault::kBadExit);
  EXPECT_EQ(faultOf(hello() + output(0, "abc") + exited([](auto e) { e.getStdout().setTotal(2); })),
            GuestFault::kBadExit);
  EXPECT_EQ(faultOf(hello() + exited([](auto e) {
                      e.getStdout().setTotal(1);
                      e.getStdout().setDropped(2);
                    })),
            GuestFault::kBadExit);
  EXPECT_EQ(faultOf(hello() + failed(5000)), GuestFault::kBadExit);
}

TEST(GuestStream, PathsBecomeText) {
  Sink sink;
  GuestStream stream(sink, kExec, false);
  stream.started();
  ASSERT_EQ(feed(stream, hello() + exited([](auto e) {
                           e.setFileAtLimit("/work/\xff\n\\a");
                           e.initScratch(1)[0].setPath("/\x1b[2J");
                         })),
            GuestFault::kNone);
  ASSERT_TRUE(sink.exit);
  EXPECT_EQ(sink.exit->fileAtLimit, "/work/\\xff\\x0a\\a");
  EXPECT_EQ(sink.exit->scratch.at(0).path, "/\\x1b[2J");
}

TEST(GuestStream, Frames) {
  auto frame = [](uint32_t length, uint32_t magic) {
    const uint32_t header[2] = {length, magic};
    return std::string(reinterpret_cast<const char*>(header), sizeof header);
  };
  EXPECT_EQ(faultOf(std::string(100, '\xaa')), GuestFault::kBadFrame);
  EXPECT_EQ(faultOf(frame(0, ipc::kFrameMagic)), GuestFault::kBadFrame);
  EXPECT_EQ(faultOf(frame(9, ipc::kFrameMagic)), GuestFault::kBadFrame);
  EXPECT_EQ(faultOf(frame(guest::MAX_FRAME_BYTES + 8, ipc::kFrameMagic)), GuestFault::kBadFrame);
  EXPECT_EQ(faultOf(frame(guest::MAX_FRAME_BYTES, ipc::kFrameMagic)), GuestFault::kNone);
  EXPECT_EQ(faultOf(frame(8, ipc::kFrameMagic) + std::string(8, '\xff')), GuestFault::kBadMessage);
  // A message with something behind it in the same frame.
  auto padded = hello();
  padded += std::string(8, '\0');
  uint32_t length = static_cast<uint32_t>(padded.size() - 8);
  memcpy(padded.data(), &length, sizeof length);
  EXPECT_EQ(faultOf(padded), GuestFault::kBadMessage);
}

TEST(GuestStream, AFaultIsFinal) {
  Sink sink;
  GuestStream stream(sink, kExec, false);
  stream.started();
  EXPECT_EQ(feed(stream, hello() + output(0, "")), GuestFault::kBadOffset);
  EXPECT_EQ(feed(stream, started() + output(0, "x")), GuestFault::kBadOffset);
  EXPECT_EQ(sink.started, 0);
  EXPECT_TRUE(sink.out[0].empty());
}

TEST(OutputMessage, IsTheProtobufMessage) {
  OutputMessage message;
  EXPECT_TRUE(message.empty());
  message.add(1, 70'000, grpc::Slice("abc"), 3);
  EXPECT_TRUE(message.accepts(1, 70'003));
  EXPECT_FALSE(message.accepts(0, 70'003));
  EXPECT_FALSE(message.accepts(1, 70'004));
  message.add(1, 70'003, grpc::Slice(std::string(100'000, 'x')), 100'000);
  auto buffer = message.take();
  EXPECT_TRUE(message.empty());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (auto& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  v1::ExecResponse response;
  ASSERT_TRUE(response.ParseFromString(bytes));
  EXPECT_EQ(response.output().stream(), v1::STDERR);
  EXPECT_EQ(response.output().offset(), 70'000u);
  EXPECT_EQ(response.output().data(), "abc" + std::string(100'000, 'x'));
}

}  // namespace
}  // namespace cordon::agents
