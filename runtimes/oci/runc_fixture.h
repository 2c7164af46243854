// RuntimeFixture on real runc. CORDON_TEST_RUNC names another than the installed
// one.
#pragma once
#include <string>

#include "runtimes/copying.h"
#include "runtimes/oci/runc.h"
#include "runtimes/runtime_fixture.h"

namespace cordon::runtimes {

inline std::string runcUnderTest() {
  const char* named = getenv("CORDON_TEST_RUNC");
  return named == nullptr ? "" : named;
}

class RuncFixture : public RuntimeFixture {
 protected:
  ~RuncFixture() noexcept override {}

  kj::Own<Runtime> makeRuntime() override {
    return makeRuncRuntime(children_, port_.getTimer(), *tree_, options_);
  }

  Result create(RuncOptions options) {
    options_ = std::move(options);
    options_.copying = &copying_;
    return createSandbox();
  }

  void start() {
    options_ = {runcUnderTest(), 20 * kj::SECONDS, &copying_};
    startSandbox();
  }

  void change(CreateRequest& request) override { request.ownCore = ownCore_; }

  bool ownCore_ = false;

 private:
  // Of which nothing is run here.
  Copying copying_{children_, port_.getTimer(), "/bin/true", "/bin/true"};
  RuncOptions options_;
};

}  // namespace cordon::runtimes
