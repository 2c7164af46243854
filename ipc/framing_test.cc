#include "ipc/framing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ipc/guest.capnp.h"

namespace cordon::ipc {
namespace {

std::vector<kj::byte> frameOf(size_t dataBytes) {
  capnp::MallocMessageBuilder message;
  auto in = message.initRoot<guest::HostMessage>().initStdin();
  in.setExec(7);
  auto bytes = in.initBytes(static_cast<uint32_t>(dataBytes));
  for (size_t i = 0; i < dataBytes; ++i) bytes[i] = static_cast<kj::byte>(i * 31);
  auto words = frameMessage(message);
  auto raw = words.asBytes();
  return {raw.begin(), raw.end()};
}

std::vector<kj::byte> header(uint32_t length, uint32_t magic = kFrameMagic) {
  std::vector<kj::byte> bytes(8);
  memcpy(bytes.data(), &length, 4);
  memcpy(bytes.data() + 4, &magic, 4);
  return bytes;
}

void feed(FrameReader& reader, const std::vector<kj::byte>& bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    auto space = reader.space();
    ASSERT_GT(space.size(), 0u);
    size_t n = std::min(space.size(), bytes.size() - at);
    memcpy(space.begin(), bytes.data() + at, n);
    reader.commit(n);
    at += n;
  }
}

void expectFrame(FrameReader& reader, size_t dataBytes) {
  auto frame = reader.next();
  ASSERT_TRUE(frame != nullptr);
  KJ_IF_MAYBE (words, frame) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(words->begin()) % alignof(capnp::word), 0u);
    capnp::FlatArrayMessageReader message(*words, readerOptions(words->asBytes().size()));
    auto in = message.getRoot<guest::HostMessage>();
    ASSERT_TRUE(in.isStdin());
    EXPECT_EQ(in.getStdin().getExec(), 7u);
    auto bytes = in.getStdin().getBytes();
    ASSERT_EQ(bytes.size(), dataBytes);
    for (size_t i = 0; i < dataBytes; ++i) {
      ASSERT_EQ(bytes[i], static_cast<kj::byte>(i * 31)) << i;
    }
  }
}

TEST(Framing, RoundTripByteByByte) {
  FrameReader reader(65536);
  for (size_t size : {0, 1, 8, 9, 1000}) {
    auto bytes = frameOf(size);
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_TRUE(reader.next() == nullptr);
      feed(reader, {bytes[i]});
      EXPECT_TRUE(reader.partial());
    }
    expectFrame(reader, size);
    EXPECT_FALSE(reader.partial());
  }
}

TEST(Framing, ManyFramesAtOnceAndGrowth) {
  FrameReader reader(2 << 20, 64);
  std::vector<kj::byte> all;
  const std::vector<size_t> sizes = {10, 60000, 3, 1 << 20, 0, 5};
  for (size_t size : sizes) {
    auto bytes = frameOf(size);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  size_t at = 0;
  size_t seen = 0;
  while (at < all.size()) {
    auto space = reader.space();
    ASSERT_GT(space.size(), 0u);
    size_t n = std::min({space.size(), all.size() - at, size_t{777}});
    memcpy(space.begin(), all.data() + at, n);
    reader.commit(n);
    at += n;
    for (;;) {
      FrameReader* r = &reader;
      if (seen < sizes.size()) {
        auto frame = r->next();
        if (frame == nullptr) break;
        KJ_IF_MAYBE (words, frame) {
          capnp::FlatArrayMessageReader message(*words, readerOptions(words->asBytes().size()));
          EXPECT_EQ(message.getRoot<guest::HostMessage>().getStdin().getBytes().size(),
                    sizes[seen]);
        }
        ++seen;
      } else {
        break;
      }
    }
  }
  EXPECT_EQ(seen, sizes.size());
  // The large frame's memory is given back.
  EXPECT_LE(reader.space().size(), 4u * 32 * 1024);
}

TEST(Framing, RefusesBadHeaders) {
  struct Case {
    std::vector<kj::byte> bytes;
    FrameError error;
  };
  for (auto& c : std::vector<Case>{{header(8, 0x12345678), FrameError::kBadMagic},
                                   {header(0), FrameError::kBadLength},
                                   {header(12), FrameError::kBadLength},
                                   {header(65544), FrameError::kTooLong},
                                   {header(0xfffffff8), FrameError::kTooLong}}) {
    FrameReader reader(65536);
    feed(reader, c.bytes);
    EXPECT_TRUE(reader.next() == nullptr);
    EXPECT_EQ(reader.error(), c.error);
    EXPECT_EQ(reader.space().size(), 0u);
    // The error is final.
    EXPECT_TRUE(reader.next() == nullptr);
  }
}

TEST(Framing, LargestPayloadIsAccepted) {
  auto bytes = frameOf(65536 - 64);
  size_t payload = bytes.size() - kFrameHeaderBytes;
  FrameReader exact(payload);
  feed(exact, bytes);
  expectFrame(exact, 65536 - 64);
  FrameReader less(payload - 8);
  auto space = less.space();
  memcpy(space.begin(), bytes.data(), 8);
  less.commit(8);
  EXPECT_TRUE(less.next() == nullptr);
  EXPECT_EQ(less.error(), FrameError::kTooLong);
}

TEST(Framing, HeaderAloneAllocatesNoMoreThanItsFrame) {
  FrameReader reader(1 << 20, 64);
  feed(reader, header(1 << 20));
  EXPECT_EQ(reader.space().size(), size_t{1} << 20);
  EXPECT_EQ(reader.error(), FrameError::kNone);
}

TEST(Framing, TraversalLimitStopsAmplification) {
  // A list of structs of zero size counts as many elements for no bytes; the
  // limit must stop a walk over it.
  auto options = readerOptions(1024);
  EXPECT_LE(options.traversalLimitInWords, 4u * 1024 / 8 + 64);
  EXPECT_EQ(options.nestingLimit, 8);
}

}  // namespace
}  // namespace cordon::ipc
