@0x9d3c4b7a1e2f5068;
# The broker's RPC: a closed set of operations on typed capabilities. Which
# bootstrap capability a peer gets is decided by the uid of its connection
# (SO_PEERCRED); every other peer is disconnected.
#
# Results are a Status (code, reason and typed fields) plus fields that are
# meaningful only when the code is `ok`. Exception text never crosses.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("cordon::rpc");

enum Code {
  ok @0;
  invalidArgument @1;
  notFound @2;
  # Also: exists, but is another owner's or the token is wrong.
  resourceExhausted @3;
  failedPrecondition @4;
  unavailable @5;
  # The runtime can't be used on this host, or failed in a way that may pass.
  internal @6;
}

enum Reason {
  none @0;
  limitTooLow @1;
  # Below the useful minimum; `limit` has it.
  limitTooHigh @2;
  # Over the host's ceiling; `limit` has the ceiling.
  scratchExceedsMemory @3;
  # disk + tmp + shm don't fit inside memory.
  unknownRuntime @4;
  runtimeUnavailable @5;
  # probe() says no: `detail` has its reason.
  runtimeNotAllowed @6;
  # `host` without --allow-host-runtime.
  unknownImage @7;
  imageRefused @8;
  # The image directory holds something unsafe; `detail` names it.
  badName @9;
  noSuchSandbox @10;
  sandboxGone @11;
  # It existed; it died or is being destroyed.
  tooManySandboxes @12;
  tooManyExecs @13;
  limitNotApplied @14;
  # Written, but the kernel's read-back differs; `subject` names the file.
  runtimeFailed @15;
  # The runtime's program failed; `detail` has its exit status (never its text).
  runtimeTimeout @16;
  # The runtime's program hung and was killed.
  agentUnresponsive @17;
  # The control socket is full or closed.
  hostLimit @18;
  # A resource of the host ran out (errno in `errno`).
  idRangesExhausted @19;
  shuttingDown @20;
  noSuchExec @21;
  execLimitTooWide @22;
  unknownSeccompProfile @23;
  # `detail` has the names there are.
  seccompNotApplied @24;
  # A profile was asked for of a runtime that puts none on (`host`).
  unsupported @25;
  # The runtime can't do what `subject` asks for.
  stateFull @26;
  # The disk of the broker's state directory, or that of the snapshots, is full: a
  # record or a snapshot can't be written.
  noSuchSnapshot @27;
  # Also: exists, but is another owner's or the token is wrong.
  tooManySnapshots @28;
  # `limit` has how many there may be.
  snapshotTooLarge @29;
  # `subject` says what of it: bytes, logicalBytes, entries, depth or links.
  snapshotDamaged @30;
  # It is not what was written; `detail` says how that shows.
  snapshotMismatch @31;
  # Of another runtime, image, machine or version than what it would be put into.
  snapshotFailed @32;
  # It could not be taken or put back; `errno` where there is one.
  snapshotDoesNotFit @33;
  # The new sandbox's limits are too small for it.
  snapshotBusy @34;
  # Of this sandbox one is being taken already.
}

struct Status {
  code @0 :Code;
  reason @1 :Reason;
  subject @2 :Text;
  # The field or kernel file it is about, from a fixed vocabulary; "" = none.
  detail @3 :Text;
  # One sentence written by the broker, safe to show. No runtime's stderr.
  limit @4 :UInt64;
  # The bound that was exceeded, in the field's unit; 0 = none.
  errno @5 :Int32;
}

struct Limits {
  # 0 = the broker's default for that field (frontends refuse an explicit 0).
  memoryBytes @0 :UInt64;
  # memory of all the workload's processes and files in scratch; no swap.
  pids @1 :UInt32;
  # tasks (processes and threads) of the workload at once.
  cpuMillis @2 :UInt32;
  # CPU rate: 1000 = one CPU.
  cpuTimeMs @3 :UInt64;
  # CPU time of one exec, all its processes.
  wallMs @4 :UInt64;
  # wall clock of one exec.
  fileSizeBytes @5 :UInt64;
  # RLIMIT_FSIZE: largest file a process may write.
  files @6 :UInt32;
  # RLIMIT_NOFILE: open files per process.
  diskBytes @7 :UInt64;
  # size of /work.
  tmpBytes @8 :UInt64;
  # size of /tmp.
  shmBytes @9 :UInt64;
  # size of /dev/shm.
  outputBytes @10 :UInt64;
  # cap on stdout and on stderr of one exec, each.
  rootBytes @11 :UInt64;
  # How much may be written to the root; 0 = the root is read-only (here no
  # default of the broker's). Refused (unsupported) where the runtime can't.
}

struct SandboxSpec {
  runtime @0 :Text;
  # "" = the default runtime of the instance (never `host`).
  image @1 :Text;
  # "" = host-usr. A configured image's name, or a directory below --images.
  limits @2 :Limits;
  ttlMs @3 :UInt64;
  # Destroyed this long after its creation; 0 = the broker's default.
  idleMs @4 :UInt64;
  # Destroyed after this long without a running exec; 0 = the default.
  hostname @5 :Text;
  # "" = the sandbox's name. Letters, digits and '-', at most 63.
  seccomp @6 :Text;
  # The profile of the workload: "" = `default`, or `default`, `tuned`, `build`.
  # Refused for a runtime that is no sandbox.
  explain @7 :Bool;
  # Its programs are to be explained: vm-agent's own filter asks where it refuses
  # otherwise, or whoever explains would not hear of the calls that both refuse.
  # A vm-agent that was taken over can lift it (docs/threat-model.md).
  snapshot @8 :Text;
  # NAME.TOKEN of a snapshot of the same owner: the sandbox starts with its files.
  # What is not said above (runtime, image, limits, seccomp) is as it was there; a
  # runtime or image that is said must be the same. "" = none.
}

struct SeccompProfile {
  # A list of system calls that pass (docs/seccomp.md); the others are refused.
  name @0 :Text;
  calls @1 :UInt32;
  # that pass, at least for some arguments
  known @2 :UInt32;
  # of so many that this architecture has
}

struct Owner {
  uid @0 :UInt32;
  # The client's uid, as the frontend learned it from SO_PEERCRED. A claim.
}

enum Scope {
  exec @0;
  # the exec's own leaf: nobody else moves it
  sandbox @1;
  # the sandbox's `work` cgroup
  host @2;
  # a cgroup above the sandbox's
}

enum CounterKind {
  oomKills @0;
  # processes killed for memory (memory.events oom_kill; v1: memory.oom_control)
  memoryLimitHits @1;
  # v2 only: memory.events max; never a verdict alone
  pidsRefused @2;
  # forks refused by a pids limit (pids.events max)
  cpuUsageUs @3;
  cpuUserUs @4;
  cpuSystemUs @5;
  cpuThrottled @6;
  # periods throttled (cpu.stat nr_throttled)
  cpuThrottledUs @7;
  memoryPeakBytes @8;
  # memory.peak; v1: memory.max_usage_in_bytes
  memoryUsedBytes @9;
  pidsNow @10;
}

struct Counter {
  kind @0 :CounterKind;
  scope @1 :Scope;
  value @2 :UInt64;
  file @3 :Text;
  # Where it was read: the kernel file and key, e.g. "memory.oom_control oom_kill".
}

enum SandboxState {
  creating @0;
  ready @1;
  lost @2;
  # Its init died without being asked to.
  destroying @3;
}

struct SandboxInfo {
  name @0 :Text;
  runtime @1 :Text;
  image @2 :Text;
  owner @3 :Owner;
  state @4 :SandboxState;
  createdUnixMs @5 :Int64;
  limits @6 :Limits;
  # As applied (defaults filled in; read back from the kernel where it has them).
  execsRunning @7 :UInt32;
  execsTotal @8 :UInt32;
  counters @9 :List(Counter);
  # sandbox and host scope; empty in `list`.
  idRangeStart @10 :UInt32;
  # First host uid and gid; 0 = none (host runtime).
  ttlLeftMs @11 :UInt64;
  idleMs @12 :UInt64;
  isolation @13 :Text;
  # One line: what the boundary is, e.g. "runc: namespaces, cgroups v1, seccomp
  # tuned (70 of 373 calls)".
  seccomp @14 :SeccompProfile;
  # The workload's; no name = none (host runtime).
  card @15 :BoundaryCard;
  # In `inspect` alone: it costs a read of a dozen files.
}

# ---- The boundary card: docs/card.md. Every text is printable ASCII (other
# bytes as \012) and at most 256 KiB together from one file.

enum FactSource {
  kernel @0;
  # the host's kernel, read when the card was asked for, or by the jailer at
  # creation
  agent @1;
  # told by vm-agent
  broker @2;
  # planned or compiled by the service; nothing that was read back
}

struct Origin {
  source @0 :FactSource;
  from @1 :Text;
  # The file or the call: "/proc/PID/status of the init".
  missing @2 :Text;
  # "" = the facts beside it were had. Else why not; they are then empty.
}

struct CapabilitySet {
  set @0 :Text;
  # inheritable, permitted, effective, bounding, ambient
  mask @1 :UInt64;
  names @2 :List(Text);
}

struct IdMapLine {
  inside @0 :UInt32;
  outside @1 :UInt32;
  # the host's
  count @2 :UInt32;
}

enum Own {
  unknown @0;
  yes @1;
  # another one than the service's
  no @2;
}

struct NamespaceFact {
  kind @0 :Text;
  # user, mnt, pid, net, ipc, uts, cgroup
  inode @1 :UInt64;
  # 0 = could not be read; origin.missing says why
  serviceInode @2 :UInt64;
  # of the process that started the service's broker, before it narrowed itself
  own @3 :Own;
  shownBy @4 :Text;
  # what `own` is concluded from
  origin @5 :Origin;
  # of `inode`
}

struct MountFact {
  where @0 :Text;
  flags @1 :Text;
  # of the mount: "ro,nosuid,nodev,relatime"
  type @2 :Text;
  source @3 :Text;
  root @4 :Text;
  # which part of the file system: "/" or, of a bind, the path in it
  options @5 :Text;
  # of the file system: "rw,size=65536k"
}

struct PlannedMount {
  what @0 :Text;
  where @1 :Text;
  flags @2 :Text;
}

struct LimitFact {
  group @0 :Text;
  # the cgroup: work (all execs together) or agent
  file @1 :Text;
  value @2 :Text;
  # the kernel's words; "" = missing
  missing @3 :Text;
}

struct RlimitFact {
  name @0 :Text;
  soft @1 :Text;
  hard @2 :Text;
  unit @3 :Text;
}

struct InterfaceFact {
  name @0 :Text;
  receivedBytes @1 :UInt64;
  sentBytes @2 :UInt64;
}

struct BoundaryCard {
  isSandbox @0 :Bool;
  runtimeVersion @1 :Text;
  argumentsChosenBy @2 :Text;
  # of the system calls that reach the host's kernel
  missing @3 :Text;
  # "" = there is a card; else why there is none

  status @4 :Origin;
  # of the following, as of the sandbox's init (vm-agent)
  uids @5 :List(UInt32);
  # real, effective, saved, file system; the host's numbers
  gids @6 :List(UInt32);
  noNewPrivs @7 :Bool;
  capabilities @8 :List(CapabilitySet);
  seccompMode @9 :UInt32;
  # 0 none, 1 strict, 2 filters
  initFilters @10 :UInt32;
  # in force on the init: the service's, and the agent's own
  filtersCounted @11 :Bool;
  # false: this kernel doesn't count them

  serviceFilters @12 :UInt32;
  # in force on the broker, and inherited by all that it starts
  serviceFiltersOrigin @13 :Origin;
  serviceRefusedCalls @14 :UInt32;
  # that the broker's own filter refuses; source broker
  agentProfile @15 :SeccompProfile;
  # the agent's own filter; source broker
  workloadFilters @16 :UInt32;
  # that vm-agent puts on each program besides; source broker

  uidMap @17 :List(IdMapLine);
  uidMapOrigin @18 :Origin;
  gidMap @19 :List(IdMapLine);
  gidMapOrigin @20 :Origin;
  namespaces @21 :List(NamespaceFact);
  mounts @22 :List(MountFact);
  mountsOrigin @23 :Origin;
  plan @24 :List(PlannedMount);
  # source broker
  limits @25 :List(LimitFact);
  limitsOrigin @26 :Origin;
  rlimits @27 :List(RlimitFact);
  rlimitsOrigin @28 :Origin;
  interfaces @29 :List(InterfaceFact);
  interfacesOrigin @30 :Origin;
  coreCookie @31 :UInt64;
  # of core scheduling: another in every sandbox, and in all that runs in it
  coreOrigin @32 :Origin;
  # missing: it has none, and why
}

struct ReceiptItem {
  kind @0 :Text;
  # process, cgroup, mount, directory, id-range, record, container
  name @1 :Text;
  errno @2 :Int32;
  # For what is left: why.
}

struct Receipt {
  complete @0 :Bool;
  # True: nothing is left. False: `left` is kept in the record and retried.
  removed @1 :List(ReceiptItem);
  left @2 :List(ReceiptItem);
}

struct RuntimeInfo {
  name @0 :Text;
  available @1 :Bool;
  reason @2 :Text;
  # Why not, or "" when available.
  fix @3 :Text;
  # What to do about it.
  version @4 :Text;
  notes @5 :List(Text);
  # Facts an operator should know, e.g. known CVEs of this version.
  isDefault @6 :Bool;
  isSandbox @7 :Bool;
  # False for `host`.
}

struct SnapshotInfo {
  name @0 :Text;
  owner @1 :Owner;
  kind @2 :Text;
  # "filesystem": what was changed or removed in the root, and /work and /tmp.
  sandbox @3 :Text;
  # Name of the one it was taken of.
  runtime @4 :Text;
  image @5 :Text;
  createdUnixMs @6 :Int64;
  limits @7 :Limits;
  # Of that sandbox: those of one made from it, unless it asks for others.
  bytes @8 :UInt64;
  # on the broker's disk
  dataBytes @9 :UInt64;
  # content of files
  entries @10 :UInt32;
  skippedSockets @11 :UInt32;
  skippedDevices @12 :UInt32;
  withoutXattrs @13 :UInt32;
  # Files and directories whose extended attributes were left behind.
}

interface AgentPort {
  # For the uid of cordon-agents.
  acquire @0 (owner :Owner, spec :SandboxSpec, whileConnected :Bool) -> (status :Status, sandbox :Sandbox, name :Text, token :Text, info :SandboxInfo);
  # Creates a sandbox; returns when its agent is ready. The token is random,
  # shown once; the broker keeps a hash of it. whileConnected: for one exec;
  # the end of this connection destroys it.
  attach @1 (owner :Owner, name :Text, token :Text) -> (status :Status, sandbox :Sandbox);
  # Unknown name, another's owner and wrong token all answer notFound.
  # A lost sandbox still attaches (to inspect and destroy it).
  list @2 (owner :Owner, after :Text, most :UInt32) -> (sandboxes :List(SandboxInfo), more :Bool);
  # A page: the owner's sandboxes whose names come after `after`, in the order of
  # names; at most `most`, and never more than 500 (0 = 500).
  runtimes @3 () -> (runtimes :List(RuntimeInfo), profiles :List(SeccompProfile));
  beginExec @4 (owner :Owner, name :Text, token :Text, exec :ExecLimits) -> (status :Status, sandbox :Sandbox, stream :Stream, exec :UInt32, before :List(Counter), sharedWith :UInt32, runtime :Text, limits :Limits, seccomp :Text, asks :Bool);
  # attach, and Sandbox.beginExec with a stream, in one: most of what an exec in
  # a live sandbox costs is messages between processes. `runtime`, `limits` and
  # `seccomp` (the name of the workload's profile, "" = none) are the sandbox's;
  # `asks`: it was made with `explain`.
  snapshots @5 (owner :Owner) -> (snapshots :List(SnapshotInfo));
  deleteSnapshot @6 (owner :Owner, name :Text, token :Text) -> (status :Status);
}

interface Stream {
  # Carries one fd (Capability::getFd): a SOCK_STREAM socket to vm-agent that
  # speaks guest.capnp. Duplicate it before the capability drops.
}

struct ExecLimits {
  cpuTimeMs @0 :UInt64;
  # 0 = the sandbox's. The broker polls usage and kills the exec past it, also
  # what it left running when main had ended.
  wallMs @1 :UInt64;
  fileSizeBytes @2 :UInt64;
  files @3 :UInt64;
  outputBytes @4 :UInt64;
  # Others hold these; here they are only compared. Each wider than the
  # sandbox's is refused before anything is done; 0 = the sandbox's.
}

enum ExecEnd {
  running @0;
  cpuTime @1;
  # the broker killed it for CPU time
  killed @2;
  # killExec
}

interface Sandbox {
  # Dropping it destroys nothing: the time to live does.
  inspect @0 () -> (status :Status, info :SandboxInfo);
  connect @1 () -> (status :Status, stream :Stream);
  # A stream without an exec: for one that carries many. Only tests ask so far;
  # a frontend has one with each beginExec.
  beginExec @2 (limits :ExecLimits, withStream :Bool) -> (status :Status, exec :UInt32, before :List(Counter), sharedWith :UInt32, stream :Stream);
  # Makes the exec's leaf, hands it to the agent, starts CPU accounting.
  # withStream: as `connect`, in the same answer.
  # sharedWith: other execs running, or left over from earlier ones.
  counters @3 (exec :UInt32) -> (status :Status, counters :List(Counter));
  # Of an exec that runs. Only tests ask so far; a verdict needs those of its
  # begin and end alone.
  endExec @4 (exec :UInt32, streamLost :Bool) -> (status :Status, after :List(Counter), sharedWith :UInt32, endedBy :ExecEnd, initExited :Bool, initSignal :UInt32, initCode :UInt32);
  # Reads the counters and gives the leaf up; processes left in it stay until
  # the sandbox is destroyed. initExited: the sandbox's init is dead (from
  # waitid), with the signal or code it died of.
  # sharedWith here: others that ran at any time since begin.
  # streamLost: the exec's stream ended unasked; waits up to a second for the
  # init's exit status, which comes after the end of the stream.
  killExec @5 (exec :UInt32) -> (status :Status);
  # Kills all processes of the exec through its cgroup.
  destroy @6 () -> (status :Status, receipt :Receipt);
  snapshot @7 () -> (status :Status, name :Text, token :Text, info :SnapshotInfo);
  # Freezes the workload, has its files copied by an unprivileged process, thaws.
  # The token is random, shown once; the broker keeps a hash of it.
}
