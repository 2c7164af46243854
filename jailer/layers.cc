#include "jailer/layers.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <cstring>

#include "jailer/mount_calls.h"

namespace cordon::jailer {

namespace {

// Of a whole tree, detached: nobody's path leads to it, and it leads nowhere else.
kj::AutoCloseFd cloneTree(int top) {
  return kj::AutoCloseFd(require(
      Step::kMounts,
      open_tree(top, "", AT_EMPTY_PATH | AT_RECURSIVE | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
}

void makeReadOnly(int tree) {
  mount_attr attributes = {};
  attributes.attr_set =
      MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  require(Step::kMounts,
          mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof(attributes)));
}

void send(const int* fds, uint32_t count) {
  Report report;
  report.kind = Report::kLayers;
  iovec data = {&report, sizeof(report)};
  alignas(cmsghdr) char control[CMSG_SPACE(kWritableRootLayers * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(count * sizeof(int));
  memcpy(CMSG_DATA(head), fds, count * sizeof(int));
  require(Step::kMounts, sendmsg(kStatusFd, &message, MSG_NOSIGNAL));
}

}  // namespace

void SnapshotLayers::take(const RootLayers& root) {
  if (root.lower.get() < 0 || merged_.get() >= 0) return;
  merged_ = cloneTree(kRootFd);
  lower_ = cloneTree(root.lower);
  upper_ = cloneTree(root.upper);
}

void SnapshotLayers::report(bool writable) {
  kj::AutoCloseFd work = cloneTree(openBeneath(kRootFd, "work", 0));
  kj::AutoCloseFd tmp = cloneTree(openBeneath(kRootFd, "tmp", 0));
  const kj::AutoCloseFd* all[] = {&work, &tmp, &merged_, &lower_, &upper_};
  uint32_t count = merged_.get() < 0 ? kReadOnlyRootLayers : kWritableRootLayers;
  int fds[kWritableRootLayers];
  for (uint32_t i = 0; i < count; ++i) {
    fds[i] = all[i]->get();
    if (!writable || i == kLowerLayer || i == kUpperLayer) makeReadOnly(fds[i]);
  }
  send(fds, count);
}

}  // namespace cordon::jailer
