// For tests: a directory of its own below /tmp, removed whatever happens.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace cordon::broker::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/cordon-test-XXXXXX";
    if (mkdtemp(name) == nullptr) abort();
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace cordon::broker::testing
