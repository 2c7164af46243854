// The calls of the new mount interface, each of which ends the process when it
// fails. `number`: what the failure says it was about (Report.detail).
#pragma once
#include <kj/io.h>

#include <cstdint>
#include <string>

#include "jailer/report.h"

namespace cordon::jailer {

// O_PATH, beneath `root` without following a link. Nothing and errno in `error`
// where it can't be opened.
kj::AutoCloseFd tryOpenBeneath(int root, const char* path, int& error);
kj::AutoCloseFd openBeneath(int root, const char* path, uint32_t number);

// Of the mount that `place` is on, rooted there, without what is mounted beneath.
kj::AutoCloseFd cloneMount(int place, uint32_t number);
void addAttributes(int mount, uint64_t set, uint32_t number);
void attach(int mount, int place, uint32_t number);

// One that is being configured.
class NewFileSystem {
 public:
  NewFileSystem(const char* type, uint32_t number);
  // A flag where `value` is null.
  NewFileSystem& set(const char* key, const char* value);
  NewFileSystem& set(const char* key, uint64_t value);
  // Of a directory: its descriptor's name in /proc.
  NewFileSystem& setPath(const char* key, int directory);
  // The mount, still detached.
  kj::AutoCloseFd mount(uint64_t attributes);

 private:
  kj::AutoCloseFd context_;
  uint32_t number_;
};

}  // namespace cordon::jailer
