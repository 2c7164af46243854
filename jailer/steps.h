// The steps of the pipeline (main.cc has their order and why it is that one).
// Each either succeeds or ends the process with a record on the status socket.
#pragma once
#include <kj/io.h>
#include <sys/types.h>

#include <cstdint>

#include "jailer/jail.capnp.h"
#include "jailer/report.h"

namespace cordon::jailer {

// Says where it failed and why, and exits. What was made so far goes with the
// process: namespaces, mounts and detached trees have no other holder.
[[noreturn]] void fail(Step step, int error, uint32_t detail = 0);

// For the last record: what each step cost, and where the sandbox is.
void done(Step step);
void noteNamespace(size_t number, uint64_t inode);
void noteCoreCookie(uint64_t cookie);
void reportDone();

// For system calls: -1 and errno.
template <typename T>
T require(Step step, T result, uint32_t detail = 0);

// descriptors.cc
void closeUnnamed();
void closeAllButThePrograms(JailSpec::Reader spec);

// spec.cc: the spec in mapped memory; wholly checked.
JailSpec::Reader readSpec();

// cgroup.cc
void joinCgroups(JailSpec::Reader spec);
void enterCgroupNamespace(JailSpec::Reader spec);

// user_namespace.cc: a user namespace with the sandbox's map and a network
// namespace of its own. A child is still furnishing them meanwhile: lo up, and
// no further user namespace can be made.
struct Prepared {
  kj::AutoCloseFd user;
  kj::AutoCloseFd network;
  kj::AutoCloseFd furnished;  // a byte, or the end where the child failed
  pid_t child;
};
Prepared prepareNamespaces(JailSpec::Reader spec);
// To be called before the user namespace is entered.
void awaitFurnished(const Prepared& prepared);

// namespaces.cc: the rest of the pipeline runs in a child, pid 1 of a new pid
// namespace and child of the jailer's parent. Returns in the child alone; the
// jailer reports its pid, waits for the furnishing child and exits.
void becomeInit(JailSpec::Reader spec, const Prepared& prepared);
void enterNetwork(const Prepared& prepared);
// Their inode numbers, for the last record.
void noteNamespaces(const Prepared& prepared);

// What attachImage() leaves for whoever takes snapshots; nothing where the root is
// read-only.
struct RootLayers {
  kj::AutoCloseFd lower;  // the image's tree, still attached beneath the old root
  kj::AutoCloseFd upper;
};

// mounts.cc; reports the layers of what vm-agent's programs can write.
void buildRoot(JailSpec::Reader spec, const Prepared& prepared);
// image.cc: kRootFd covers the old root: the image, with its owners, and writable
// where the spec says so.
void attachImage(JailSpec::Reader spec, const Prepared& prepared, RootLayers& layers);
void enterRoot();

// identity.cc
void setHostname(JailSpec::Reader spec);
void setLimits(JailSpec::Reader spec);
// Where the spec asks for it: all that runs in the sandbox has one cookie.
void isolateCore(JailSpec::Reader spec);
void becomeUnprivileged(JailSpec::Reader spec, const Prepared& prepared);
void installFilter();
[[noreturn]] void execProgram(JailSpec::Reader spec);

template <typename T>
T require(Step step, T result, uint32_t detail) {
  if (result < 0) fail(step, -1, detail);
  return result;
}

}  // namespace cordon::jailer
