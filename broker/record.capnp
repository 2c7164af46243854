@0xb7a40d2c91e6f358;
# The durable record of a sandbox, one file DIR/broker/records/NAME: written
# before the sandbox's first effect, removed after its last. What a broker that
# starts knows of what an earlier one made.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("cordon::record");

const currentVersion :UInt32 = 1;

enum State {
  creating @0;
  ready @1;
  lost @2;
  destroying @3;
}

struct Limits {
  # As resolved; units as in broker.capnp.
  memoryBytes @0 :UInt64;
  pids @1 :UInt32;
  cpuMillis @2 :UInt32;
  cpuTimeMs @3 :UInt64;
  wallMs @4 :UInt64;
  fileSizeBytes @5 :UInt64;
  files @6 :UInt32;
  diskBytes @7 :UInt64;
  tmpBytes @8 :UInt64;
  shmBytes @9 :UInt64;
  outputBytes @10 :UInt64;
  rootBytes @11 :UInt64;
}

struct LeftOver {
  # What a destroy could not remove yet, as in the receipt.
  kind @0 :Text;
  name @1 :Text;
  errno @2 :Int32;
}

struct SandboxRecord {
  version @0 :UInt32;
  # currentVersion; another one is treated as damaged.
  bootId @1 :Text;
  # /proc/sys/kernel/random/boot_id when it was made: after a reboot nothing of
  # it but directories can be left.
  name @2 :Text;
  # Equal to the file's name.
  ownerUid @3 :UInt32;
  runtime @4 :Text;
  image @5 :Text;
  tokenHash @6 :Text;
  # 64 hex digits: SHA-256 of the token.
  directory @7 :Text;
  cgroup @8 :Text;
  # Path below the hierarchies; "" = none.
  idSlot @9 :UInt32;
  # Number of the id range in the span; 0 = none (range 0 is no sandbox's).
  idFirst @10 :UInt32;
  idCount @11 :UInt32;
  createdUnixMs @12 :Int64;
  createdBootMs @13 :UInt64;
  # CLOCK_BOOTTIME, comparable within the same bootId.
  limits @14 :Limits;
  ttlMs @15 :UInt64;
  idleMs @16 :UInt64;
  state @17 :State;
  left @18 :List(LeftOver);
  # At most 128.
}
