#include "broker/main/runtime_set.h"

#include <kj/debug.h>

namespace cordon::broker {

RuntimeSet::RuntimeSet(std::vector<kj::Own<runtimes::Runtime>> runtimes, std::string byDefault)
    : runtimes_(kj::mv(runtimes)), byDefault_(std::move(byDefault)) {
  for (auto& runtime : runtimes_) answers_[runtime.get()];
}

runtimes::Runtime* RuntimeSet::find(const std::string& name) {
  for (auto& runtime : runtimes_) {
    if (name == runtime->name()) return runtime.get();
  }
  return nullptr;
}

kj::Promise<runtimes::Probe> RuntimeSet::probe(runtimes::Runtime& runtime) {
  Answer& answer = answers_.at(&runtime);
  KJ_IF_MAYBE (yes, answer.yes) {
    return *yes;
  }
  if (!answer.busy) {
    answer.busy = true;
    // What it throws at once comes the same way as what it fails with later.
    answer.asking = kj::evalNow([&runtime]() { return runtime.probe(); })
                        .then(
                            [&answer](runtimes::Probe&& probe) {
                              answer.busy = false;
                              if (probe.available) answer.yes = probe;
                              return kj::mv(probe);
                            },
                            [&answer](kj::Exception&& exception) {
                              answer.busy = false;
                              fault("probe", exception);
                              runtimes::Probe no;
                              no.reason = "the probe failed; the broker's log says why";
                              return no;
                            })
                        .fork();
  }
  return KJ_ASSERT_NONNULL(answer.asking).addBranch();
}

kj::Promise<kj::Array<runtimes::Probe>> RuntimeSet::probeAll() {
  auto probes = kj::heapArrayBuilder<kj::Promise<runtimes::Probe>>(runtimes_.size());
  for (auto& runtime : runtimes_) probes.add(probe(*runtime));
  return kj::joinPromises(probes.finish());
}

}  // namespace cordon::broker
