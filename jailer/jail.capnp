@0xd3a1c5e7f9b20417;
# What cordon-jailer is told: one message in a sealed memfd, written by the
# broker from its own configuration. No field holds a path of the host, and
# none comes from a client unchecked. Descriptors have fixed numbers
# (jailer/report.h); the jailer reads nothing else, neither environment nor
# arguments nor files.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("cordon::jailer");

const specVersion :UInt32 = 1;
const maxSpecBytes :UInt32 = 262144;
const maxMounts :UInt32 = 2048;
const maxImageMounts :UInt32 = 576;
# More are refused, as everything outside the ranges given below.

struct JailSpec {
  version @0 :UInt32;
  # specVersion
  hostname @1 :Text;
  # 1 to 64 of letters, digits, '-' and '.'
  idFirst @2 :UInt32;
  # First host uid and gid of the sandbox; 65536 and up.
  idCount @3 :UInt32;
  # Always 65536 here: id 0 inside is idFirst.
  agentUid @4 :UInt32;
  agentGid @5 :UInt32;
  # Inside ids of vm-agent, not 0.
  files @6 :UInt64;
  # RLIMIT_NOFILE of the agent; its children may have no more.
  cgroups @7 :CgroupEntry;
  cgroupFds @8 :UInt32;
  # How many descriptors from kFirstCgroupFd on: `tasks` files (v1, up to 8), or
  # the cgroup's directory and the cgroup namespace (v2: 2).
  mounts @9 :List(Mount);
  # In order. The image is the root already.
  coreScheduling @10 :Bool;
  # True: the sandbox shares a core with nobody else's hyperthread.
  image @11 :List(ImageMount);
  # What the tree in kRootFd consists of; the first is its root.
  rootBytes @12 :UInt64;
  # Size of the tmpfs that takes what is written to the root; 0: the root stays
  # read-only. Each directory of `image` gets a layer on it, files none.
  rootInodes @13 :UInt64;
  # Of that tmpfs. 0 with rootBytes 0, else 16 and more.
  program @14 :Program;
  extraFds @15 :UInt32;
  # How many descriptors from kFirstExtraFd on stay the program's, at most 8;
  # none for vm-agent.
  fileBytes @16 :UInt64;
  # RLIMIT_FSIZE; 0 = as it is. For `saver` alone.
  layersWritable @17 :Bool;
  # The layers that are reported can be written to: a snapshot is put into them
  # before the sandbox is used.
}

enum Program {
  agent @0;
  # vm-agent; its layers are reported.
  saver @1;
  # cordon-copier: reads whatever its ids own.
  restorer @2;
  # cordon-copier: writes, with owners and modes.
}

enum Owners {
  host @0;
  # Ids on the files are the host's: nobody's inside.
  own @1;
  # Ids on the files are inside ids, shown so where the file system can.
  mustBeOwn @2;
  # A file system that can't is a failure.
}

struct ImageMount {
  where @0 :Text;
  # Relative to the image's root as Mount.where, any characters; "" = the root.
  directory @1 :Bool;
  owners @2 :Owners;
}

enum CgroupEntry {
  joinTasks @0;
  # v1: the jailer writes "0" to each `tasks`.
  bornInside @1;
  # v2: CLONE_INTO_CGROUP, then setns into the cgroup namespace.
}

enum MountKind {
  proc @0;
  sysfs @1;
  tmpfs @2;
  devpts @3;
  device @4;
  # The host's /dev/`where's last part, one of: null zero full random urandom tty.
  again @5;
  # What is at `where` once more, on itself, with narrower flags.
  mask @6;
  # /dev/null over a file, an empty read-only tmpfs over a directory.
  link @7;
  # No mount: a symbolic link to `target`, in a tmpfs made before.
}

struct Option {
  key @0 :Text;
  value @1 :Text;
  # Strings of fsconfig(2): letters, digits, '_' and '='.
}

struct Mount {
  kind @0 :MountKind;
  where @1 :Text;
  # Relative to the new root: no "..", no empty part, no leading or trailing '/'.
  # What it goes through is resolved beneath the root without following links.
  options @2 :List(Option);
  # For tmpfs and devpts and proc. Ids in them are the host's.
  readOnly @3 :Bool;
  # tmpfs: after everything in it has been made.
  noExec @4 :Bool;
  # nosuid and nodev are always set (devices: nodev is not).
  make @5 :Bool;
  # Make the mount point first (a directory; for devices a file). Only in a
  # tmpfs of this list.
  optional @6 :Bool;
  # Skip where the image or the kernel has no such path.
  target @7 :Text;
  # Of a link.
}
