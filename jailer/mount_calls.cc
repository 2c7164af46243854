#include "jailer/mount_calls.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>

#include "ipc/open_beneath.h"
#include "jailer/steps.h"

namespace cordon::jailer {

namespace {

template <typename T>
T must(T result, uint32_t number) {
  return require(Step::kMounts, result, number);
}

}  // namespace

kj::AutoCloseFd tryOpenBeneath(int root, const char* path, int& error) {
  // The root is made of several mounts.
  int fd = ipc::openBeneath(root, path, O_PATH, ipc::Mounts::kAny);
  error = fd < 0 ? errno : 0;
  return fd < 0 ? kj::AutoCloseFd() : kj::AutoCloseFd(fd);
}

kj::AutoCloseFd openBeneath(int root, const char* path, uint32_t number) {
  int error;
  auto place = tryOpenBeneath(root, path, error);
  if (error != 0) fail(Step::kMounts, error, number);
  return place;
}

kj::AutoCloseFd cloneMount(int place, uint32_t number) {
  return kj::AutoCloseFd(
      must(open_tree(place, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), number));
}

void addAttributes(int mount, uint64_t set, uint32_t number) {
  mount_attr attributes = {};
  attributes.attr_set = set;
  must(mount_setattr(mount, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)), number);
}

void attach(int mount, int place, uint32_t number) {
  must(move_mount(mount, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH), number);
}

NewFileSystem::NewFileSystem(const char* type, uint32_t number)
    : context_(must(fsopen(type, FSOPEN_CLOEXEC), number)), number_(number) {
  set("source", type);
}

NewFileSystem& NewFileSystem::set(const char* key, const char* value) {
  unsigned command = value == nullptr ? FSCONFIG_SET_FLAG : FSCONFIG_SET_STRING;
  must(fsconfig(context_, command, key, value, 0), number_);
  return *this;
}

NewFileSystem& NewFileSystem::set(const char* key, uint64_t value) {
  return set(key, std::to_string(value).c_str());
}

NewFileSystem& NewFileSystem::setPath(const char* key, int directory) {
  return set(key, ("/proc/self/fd/" + std::to_string(directory)).c_str());
}

kj::AutoCloseFd NewFileSystem::mount(uint64_t attributes) {
  must(fsconfig(context_, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0), number_);
  return kj::AutoCloseFd(
      must(fsmount(context_, FSMOUNT_CLOEXEC, static_cast<unsigned>(attributes)), number_));
}

}  // namespace cordon::jailer
