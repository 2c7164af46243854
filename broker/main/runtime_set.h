// The runtimes of this instance and what their probes said.
#pragma once
#include <kj/async.h>

#include <map>
#include <string>
#include <vector>

#include "broker/main/failure.h"
#include "runtimes/runtime.h"

namespace cordon::broker {

// Unless options say otherwise.
constexpr const char* kDefaultRuntime = "jail";

class RuntimeSet {
 public:
  // `byDefault`: of a spec that names none. Never `host`.
  explicit RuntimeSet(std::vector<kj::Own<runtimes::Runtime>> runtimes,
                      std::string byDefault = kDefaultRuntime);

  const std::string& byDefault() const { return byDefault_; }

  runtimes::Runtime* find(const std::string& name);
  std::vector<kj::Own<runtimes::Runtime>>& all() { return runtimes_; }

  // A yes is remembered, a no is asked again; one question at a time.
  kj::Promise<runtimes::Probe> probe(runtimes::Runtime& runtime);
  // Of every runtime, in order.
  kj::Promise<kj::Array<runtimes::Probe>> probeAll();

 private:
  struct Answer {
    kj::Maybe<runtimes::Probe> yes;
    kj::Maybe<kj::ForkedPromise<runtimes::Probe>> asking;
    bool busy = false;
  };
  std::vector<kj::Own<runtimes::Runtime>> runtimes_;
  std::string byDefault_;
  std::map<runtimes::Runtime*, Answer> answers_;
};

}  // namespace cordon::broker
