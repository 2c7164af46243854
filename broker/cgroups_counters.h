// Counters of a cgroup, read through descriptors that are opened once and held:
// pread works for as long as the directory exists, and no path is walked again.
#pragma once
#include <kj/io.h>

#include <string>
#include <vector>

#include "broker/cgroups_dir.h"

namespace cordon::broker {

class CounterSet {
 public:
  // Adds `key` of `file` ("" = the file is one number). The value is multiplied
  // by `times` and divided by `per`. A file that does not exist is left out.
  // `where` goes before the file's name in CounterValue::file.
  void add(const CgroupDir& dir, const char* file, const char* key, rpc::CounterKind kind,
           rpc::Scope scope, uint64_t times = 1, uint64_t per = 1, const std::string& where = "");
  // What can be read now; each file is read once.
  Counters read() const;
  // One of them; 0 when it is not there.
  uint64_t value(rpc::CounterKind kind) const;
  bool empty() const { return files_.empty(); }

 private:
  struct Key {
    std::string key;
    rpc::CounterKind kind;
    rpc::Scope scope;
    uint64_t times, per;
  };
  struct File {
    std::string name;
    kj::AutoCloseFd fd;
    std::vector<Key> keys;
  };
  std::vector<File> files_;
};

// The number after `key` in lines of "key number"; key "" takes the whole text.
kj::Maybe<uint64_t> parseCounter(const std::string& text, const std::string& key);

}  // namespace cordon::broker
