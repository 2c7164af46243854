@0xe1f0a7c35d924b68;
# What the broker knows of a snapshot, DIR/NAME/meta beside the archive DIR/NAME/data
# (copier/archive.h). Written once, before the snapshot exists under its name.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("cordon::record");

using Record = import "record.capnp";

const snapshotVersion :UInt32 = 1;

struct SnapshotRecord {
  version @0 :UInt32;
  # snapshotVersion; another one can't be restored.
  format @1 :UInt32;
  # Of the archive.
  machine @2 :Text;
  # uname -m of the host: the archive's numbers and its programs are this machine's.
  name @3 :Text;
  # Equal to the directory's name.
  ownerUid @4 :UInt32;
  tokenHash @5 :Text;
  sandbox @6 :Text;
  # Name of the one it was taken of.
  runtime @7 :Text;
  image @8 :Text;
  imageIdentity @9 :Text;
  seccomp @10 :Text;
  createdUnixMs @11 :Int64;
  limits @12 :Record.Limits;
  archiveBytes @13 :UInt64;
  sha256 @14 :Text;
  # 64 hex digits, of the archive.
  dataBytes @15 :UInt64;
  logicalBytes @16 :UInt64;
  entries @17 :UInt32;
  skippedSockets @18 :UInt32;
  skippedDevices @19 :UInt32;
  withoutXattrs @20 :UInt32;
}
