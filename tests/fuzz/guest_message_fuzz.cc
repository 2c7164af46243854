// The host's side: frames with GuestMessages from a hostile guest, decoded and
// read to the last field.
#include <capnp/serialize.h>
#include <kj/debug.h>

#include "ipc/guest.capnp.h"
#include "tests/fuzz/frame_input.h"
#include "tests/fuzz/fuzz.h"

namespace cordon::fuzz {

namespace {

uint64_t sumOf(kj::ArrayPtr<const kj::byte> bytes) {
  uint64_t sum = 0;
  for (auto byte : bytes) sum += byte;
  return sum;
}

uint64_t sumOf(guest::StreamTotals::Reader totals) {
  return totals.getTotal() + totals.getDropped() + totals.getLeft();
}

uint64_t sumOf(guest::Exited::Reader exited) {
  uint64_t sum = exited.getExec() + exited.getCode() + exited.getUserUs() + exited.getSystemUs() +
                 exited.getMaxRssBytes() + exited.getWallUs() + exited.getLeftRunning() +
                 static_cast<uint64_t>(exited.getKilledBy()) + sumOf(exited.getStdout()) +
                 sumOf(exited.getStderr()) + sumOf(exited.getFileAtLimit().asBytes());
  for (auto scratch : exited.getScratch()) {
    sum += sumOf(scratch.getPath().asBytes()) + scratch.getTotalBytes() + scratch.getFreeBytes() +
           scratch.getTotalInodes() + scratch.getFreeInodes();
  }
  return sum;
}

uint64_t sumOf(guest::GuestMessage::Reader root) {
  switch (root.which()) {
    case guest::GuestMessage::HELLO:
      return root.getHello().getVersion();
    case guest::GuestMessage::STARTED:
      return root.getStarted();
    case guest::GuestMessage::OUTPUT:
      return root.getOutput().getOffset() + sumOf(root.getOutput().getBytes());
    case guest::GuestMessage::STDIN_CREDIT:
      return root.getStdinCredit().getBytes();
    case guest::GuestMessage::EXITED:
      return sumOf(root.getExited());
    case guest::GuestMessage::FAILED:
      return root.getFailed().getErrno() + static_cast<uint64_t>(root.getFailed().getStep());
  }
  return 0;
}

// Somewhere for the sums to go, so that reading is not optimised away.
volatile uint64_t sink;

void walk(kj::ArrayPtr<const capnp::word> words) {
  capnp::FlatArrayMessageReader message(words, ipc::readerOptions(words.asBytes().size()));
  sink = sumOf(message.getRoot<guest::GuestMessage>());
}

}  // namespace

std::vector<std::string> corpus() {
  std::vector<std::string> inputs;
  auto add = [&](auto&& fill) {
    capnp::MallocMessageBuilder message;
    fill(message.initRoot<guest::GuestMessage>());
    inputs.push_back(frame(message));
  };
  add([](guest::GuestMessage::Builder message) { message.initHello().setVersion(1); });
  add([](guest::GuestMessage::Builder message) { message.setStarted(1); });
  add([](guest::GuestMessage::Builder message) {
    auto output = message.initOutput();
    output.setExec(1);
    output.setOffset(1000);
    auto bytes = output.initBytes(500);
    memset(bytes.begin(), 'x', bytes.size());
  });
  add([](guest::GuestMessage::Builder message) { message.initStdinCredit().setBytes(65536); });
  add([](guest::GuestMessage::Builder message) {
    auto exited = message.initExited();
    exited.setExec(1);
    exited.setCode(9);
    exited.setSignaled(true);
    exited.initStdout().setTotal(12345);
    exited.initStderr().setDropped(1);
    auto scratch = exited.initScratch(2);
    scratch[0].setPath("/work");
    scratch[1].setPath("/tmp");
    exited.setFileAtLimit("/work/big");
  });
  add([](guest::GuestMessage::Builder message) {
    auto failed = message.initFailed();
    failed.setErrno(2);
    failed.setStep(guest::FailStep::LOOKUP);
  });
  std::string all;
  for (auto& input : inputs) all += input;
  inputs.push_back(all);
  return inputs;
}

void repair(std::string& input) {
  repairFrame(input);
}

}  // namespace cordon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cordon;
  fuzz::readFrames(data, size, guest::MAX_FRAME_BYTES, fuzz::walk);
  return 0;
}
