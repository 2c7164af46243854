#include "broker/off_loop.h"

#include <thread>

namespace cordon::broker {

kj::Promise<void> offLoop(kj::Function<void()> work) {
  struct Errand {
    kj::Function<void()> work;
    kj::Own<kj::CrossThreadPromiseFulfiller<void>> done;
  };
  auto pair = kj::newPromiseAndCrossThreadFulfiller<void>();
  auto errand = new Errand{kj::mv(work), kj::mv(pair.fulfiller)};
  std::thread([errand]() {
    errand->work();
    errand->done->fulfill();
    delete errand;
  }).detach();
  return kj::mv(pair.promise);
}

}  // namespace cordon::broker
