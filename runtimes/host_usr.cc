#include "runtimes/host_usr.h"

#include <errno.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "ipc/open_beneath.h"
#include "runtimes/image_walk.h"
#include "runtimes/oci/bundle.h"

namespace cordon::runtimes {

namespace {

constexpr char kPasswd[] =
    "root:x:0:0:root:/work:/bin/bash\n"
    "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "user:x:1000:1000:user:/work:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";

constexpr char kGroup[] =
    "root:x:0:\n"
    "daemon:x:1:\n"
    "tty:x:5:\n"
    "user:x:1000:\n"
    "nogroup:x:65534:\n";

constexpr char kHosts[] =
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n";

// Files alone: no module that talks to a daemon of the host.
constexpr char kNsswitch[] =
    "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
    "networks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n";

constexpr char kUsr[] = "usr";
constexpr off_t kMaxCacheBytes = 8 * 1024 * 1024;

// Beneath the host's root, no link followed; nothing when it is not there.
kj::Maybe<kj::AutoCloseFd> openHost(const char* path, int flags) {
  kj::AutoCloseFd root(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  int fd = ipc::openBeneath(root, path, flags, ipc::Mounts::kAny);
  if (fd >= 0) return kj::AutoCloseFd(fd);
  int error = errno;
  if (error == ENOENT || error == ELOOP || error == ENOTDIR) return nullptr;
  KJ_FAIL_SYSCALL("openat2", error, path);
}

struct Bind {
  kj::AutoCloseFd source;
  std::string path;
};

// A directory of the host that root alone can write.
kj::Maybe<Bind> publicDirectory(const char* path) {
  KJ_IF_MAYBE (source, openHost(path, O_PATH | O_DIRECTORY)) {
    struct stat status;
    KJ_SYSCALL(fstat(*source, &status), path);
    if (isRootsAlone(status.st_uid, status.st_mode)) return Bind{kj::mv(*source), path};
  }
  return nullptr;
}

// /bin, /lib and so on: links into /usr; where /usr is not merged, directories.
void addTopLevel(Skeleton& skeleton, std::vector<Bind>& binds) {
  for (const char* name : {"bin", "sbin", "lib", "lib32", "lib64", "libx32"}) {
    char target[PATH_MAX];
    std::string path = std::string("/") + name;
    ssize_t length = readlink(path.c_str(), target, sizeof target);
    std::string merged = std::string("usr/") + name;
    if (length > 0) {
      std::string link(target, static_cast<size_t>(length));
      if (link == merged || link == "/" + merged) skeleton.link(name, merged);
      continue;
    }
    KJ_IF_MAYBE (bind, publicDirectory(name)) {
      skeleton.directory(name);
      binds.push_back(kj::mv(*bind));
    }
  }
}

// The dynamic linker's cache; programs start without it, more slowly.
void copyLinkerCache(Skeleton& skeleton) {
  KJ_IF_MAYBE (file, openHost("etc/ld.so.cache", O_RDONLY | O_NONBLOCK | O_NOCTTY)) {
    struct stat status;
    KJ_SYSCALL(fstat(*file, &status));
    if (!S_ISREG(status.st_mode) || !isRootsAlone(status.st_uid, status.st_mode)) return;
    if (status.st_size > kMaxCacheBytes) return;
    std::string bytes(static_cast<size_t>(status.st_size), '\0');
    kj::FdInputStream input(file->get());
    size_t got = input.tryRead(bytes.data(), bytes.size(), bytes.size());
    bytes.resize(got);
    skeleton.file("etc/ld.so.cache", bytes);
  }
}

void addEtc(Skeleton& skeleton, std::vector<Bind>& binds) {
  skeleton.directory("etc");
  skeleton.file("etc/passwd", kPasswd);
  skeleton.file("etc/group", kGroup);
  skeleton.file("etc/hosts", kHosts);
  skeleton.file("etc/nsswitch.conf", kNsswitch);
  skeleton.link("etc/os-release", "../usr/lib/os-release");
  copyLinkerCache(skeleton);
  KJ_IF_MAYBE (bind, publicDirectory("etc/ssl/certs")) {
    skeleton.directory("etc/ssl");
    skeleton.directory("etc/ssl/certs");
    binds.push_back(kj::mv(*bind));
  }
  KJ_IF_MAYBE (bind, publicDirectory("etc/alternatives")) {
    skeleton.directory("etc/alternatives");
    binds.push_back(kj::mv(*bind));
  }
}

}  // namespace

void buildHostUsr(Skeleton& skeleton, int agent, bool own) {
  std::vector<Bind> binds;
  addMountPoints(skeleton);
  KJ_IF_MAYBE (usr, publicDirectory(kUsr)) {
    skeleton.directory(kUsr);
    binds.push_back(kj::mv(*usr));
  } else {
    KJ_FAIL_REQUIRE("/usr is not a directory that root alone can write");
  }
  addTopLevel(skeleton, binds);
  addEtc(skeleton, binds);
  skeleton.directory("run");
  skeleton.directory("var");
  skeleton.link("var/tmp", "../tmp");

  skeleton.seal(own);
  for (const Bind& bind : binds) {
    skeleton.bind(bind.source, bind.path, own && bind.path == kUsr);
  }
  skeleton.bind(agent, kAgentPath + 1, false);
}

}  // namespace cordon::runtimes
