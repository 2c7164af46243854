@0xc1f0a3b2d4e59601;
# The guest protocol: what a frontend and vm-agent say to each other on a
# stream, and the configuration that the broker gives vm-agent at create.
#
# On a stream every message is one frame (ipc/framing.h): an 8-byte header and
# one flat Cap'n Proto message. Everything that a guest sends is hostile input
# for the host side: decoders have explicit limits, and numbers here are claims.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("cordon::guest");

const protocolVersion :UInt32 = 1;
const maxFrameBytes :UInt32 = 65536;
# Largest frame payload in either direction, other than `start`.
const maxStartBytes :UInt32 = 1114112;
# Largest payload of a `start` frame: 1 MiB of argv and env, and 64 KiB around it.
const maxArgEnvBytes :UInt32 = 1048576;
# Sum of the bytes of all argv and env strings, each with its NUL.
const maxStringBytes :UInt32 = 131071;
# Longest argv or env string without its NUL (the kernel's MAX_ARG_STRLEN).
const maxStrings :UInt32 = 4096;
# Most elements in argv, and most in env.
const maxOutputChunk :UInt32 = 61440;
# Most bytes of program output in one `output` message.
const stdinWindow :UInt32 = 65536;
# Bytes of stdin a host may have outstanding for an exec when it starts.

struct HostMessage {
  # Host (frontend) to guest (vm-agent).
  union {
    start @0 :Start;
    # Start a program. Answered by `failed`, or by output and then `exited`.
    stdin @1 :Stdin;
    # Bytes for the program's standard input, within the credit given.
    closeStdin @2 :UInt32;
    # Exec number: end of its standard input, after what was sent is delivered.
    signal @3 :Signal;
    # Send a signal to the exec's main process.
    kill @4 :UInt32;
    # Exec number: SIGKILL every process of the exec, also double-forked ones.
    # `exited` follows as usual.
    shutdown @5 :Void;
    # Kill every exec of the sandbox and exit.
  }
}

struct Start {
  exec @0 :UInt32;
  # The exec's number, from the broker's beginExec; 1 and up, used once.
  argv @1 :List(Data);
  # At least one; argv[0] without a slash is looked up in env's PATH by the
  # child under the workload's uid. No NUL inside.
  env @2 :List(Data);
  # KEY=VALUE, KEY not empty. The whole environment: nothing is inherited.
  cwd @3 :Data;
  # Working directory; empty: AgentConfig.workDir; relative: beneath it.
  user @4 :Text;
  # "" : the default user. "NAME", "UID" or "UID:GID": NAME is looked up in the
  # image's /etc/passwd. Never the agent's uid.
  fileSizeBytes @5 :UInt64;
  # RLIMIT_FSIZE in bytes; 0: the ceiling of AgentConfig. Wider is refused.
  files @6 :UInt32;
  # RLIMIT_NOFILE; 0: the ceiling. Wider is refused.
  cpuTimeMs @7 :UInt64;
  # CPU time of the whole exec in ms; RLIMIT_CPU (rounded up to seconds, plus
  # one for hard) is set from it as a backstop. 0: the ceiling. Wider is refused.
  deadlineMs @8 :UInt64;
  # vm-agent kills the exec this long after its start (a backstop; the frontend
  # fires first). 0: the ceiling. Wider is refused.
  outputBytes @9 :UInt64;
  # Cap on each of stdout and stderr, in bytes. 0: the ceiling. Wider is refused.
  stdin @10 :Bool;
  # True: a pipe fed by `stdin`; false: /dev/null.
  explain @11 :Bool;
  # Calls that the seccomp profile answers with an errno are asked about
  # instead: the frame of `started` brings the listener (seccomp_unotify(2)) as
  # its one descriptor (SCM_RIGHTS). No other frame brings any.
}

struct Stdin {
  exec @0 :UInt32;
  bytes @1 :Data;
  # At most the credit left; more is a protocol error that ends the stream.
}

struct Signal {
  exec @0 :UInt32;
  signo @1 :UInt32;
  # 1 to 64.
}

struct GuestMessage {
  # Guest (vm-agent) to host (frontend).
  union {
    hello @0 :Hello;
    # The first message on every stream; being readable means ready.
    started @1 :UInt32;
    # Exec number: its program was exec'd.
    output @2 :Output;
    stdinCredit @3 :StdinCredit;
    exited @4 :Exited;
    # The exec's last message.
    failed @5 :Failed;
    # The exec's only message: its program was never started.
  }
}

struct Hello {
  version @0 :UInt32;
  # protocolVersion of the agent.
}

enum OutputStream {
  stdout @0;
  stderr @1;
}

struct Output {
  exec @0 :UInt32;
  stream @1 :OutputStream;
  offset @2 :UInt64;
  # Position of the first byte in everything the program wrote to this stream.
  # A gap from the end of the chunk before is what was dropped past the cap.
  bytes @3 :Data;
}

struct StdinCredit {
  exec @0 :UInt32;
  bytes @1 :UInt32;
  # So many more bytes of stdin may be sent.
}

struct StreamTotals {
  total @0 :UInt64;
  # Bytes the program wrote, as far as they were read from its pipe.
  dropped @1 :UInt64;
  # Of these, bytes past the cap that were not sent.
  left @2 :UInt64;
  # Bytes dropped because a process that outlived main held the pipe (part of
  # neither figure above when they were never read).
}

enum KilledBy {
  nobody @0;
  host @1;
  # A `kill` message, or the end of the stream.
  deadline @2;
  # The agent's own backstop deadline.
}

struct Exited {
  exec @0 :UInt32;
  signaled @1 :Bool;
  code @2 :UInt32;
  # Exit status 0..255, or the signal's number when `signaled`.
  userUs @3 :UInt64;
  systemUs @4 :UInt64;
  # CPU time of main and the children it waited for (wait4), in microseconds.
  maxRssBytes @5 :UInt64;
  # Largest resident set of one of them.
  wallUs @6 :UInt64;
  # From fork to the end of main, CLOCK_MONOTONIC.
  stdout @7 :StreamTotals;
  stderr @8 :StreamTotals;
  killedBy @9 :KilledBy;
  leftRunning @10 :UInt32;
  # Processes of the exec alive after main ended (0 when killed; at most 65535).
  scratch @11 :List(Scratch);
  # The writable file systems at the end of the exec.
  fileAtLimit @12 :Text;
  # Path of a file in the scratch whose size is exactly fileSizeBytes; "" if
  # none was found (the search is bounded: 512 entries, 4 levels).
}

struct Scratch {
  path @0 :Text;
  totalBytes @1 :UInt64;
  freeBytes @2 :UInt64;
  totalInodes @3 :UInt64;
  freeInodes @4 :UInt64;
}

enum FailStep {
  request @0;
  # The start message itself: wider than the ceiling, malformed, exec unknown
  # or used, too many execs. errno says which: E2BIG, EINVAL, EBUSY, EPERM.
  fork @1;
  cgroup @2;
  stdio @3;
  user @4;
  rlimits @5;
  cwd @6;
  seccomp @7;
  lookup @8;
  # argv[0] was not found in PATH.
  exec @9;
}

struct Failed {
  exec @0 :UInt32;
  errno @1 :UInt32;
  step @2 :FailStep;
}

# ---------------------------------------------------------------------------
# The control socket, broker to agent (SOCK_SEQPACKET, agent's fd 0). Each
# datagram is ipc::ControlHeader (ipc/control.h) and, for `config`, one flat
# AgentConfig. The agent never sends on it.

enum JoinMode {
  subreaper @0;
  # No cgroup: a minimal child of the agent per exec is the subreaper.
  cgroupV1 @1;
  # The child joins by writing "0" to the `tasks` fds that came with the exec.
  cgroupV2 @2;
  # The child is born in the leaf (CLONE_INTO_CGROUP) whose fd came with it.
}

struct AgentConfig {
  join @0 :JoinMode;
  switchUser @1 :Bool;
  # True in sandboxes: children change to the workload's uid and drop
  # everything. False on `host`: programs run as the agent's own user.
  defaultUid @2 :UInt32;
  defaultGid @3 :UInt32;
  # The workload's user when `start.user` is empty (sandbox ids).
  agentUid @4 :UInt32;
  # Refused as a workload's uid.
  workDir @5 :Text;
  # Default cwd, absolute.
  scratch @6 :List(Text);
  # Mount points that `exited.scratch` reports on; the first is also searched
  # for fileAtLimit.
  maxExecs @7 :UInt32;
  # Execs alive at once, 1..64.
  fileSizeBytes @8 :UInt64;
  files @9 :UInt32;
  cpuTimeMs @10 :UInt64;
  deadlineMs @11 :UInt64;
  outputBytes @12 :UInt64;
  # Ceilings for `start`, as there; 0 = no ceiling and no limit by default.
  dataBytes @13 :UInt64;
  # RLIMIT_DATA for children; 0: none. Only `host` uses it (no cgroup there).
  processes @14 :UInt32;
  # RLIMIT_NPROC for children; 0: none. Only `host` uses it.
}
