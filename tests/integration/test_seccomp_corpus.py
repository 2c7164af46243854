"""Real work under the seccomp profiles, and whether each call that they let
through is needed by some of it.

docs/seccomp.md says how to use this when a profile and the programs drift apart.
"""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import pytest

import support
from seccomp_corpus import BUILD, CPYTHON_BUILD, CPYTHON_TUNED, PYTHON, TUNED, WITNESSES

TRY = support.LIBEXEC / "test/seccomp-try"
DOCUMENT = support.TOP / "docs/seccomp.md"
WORK = {"tuned": TUNED, "build": {**TUNED, **BUILD}}
MOST_CALLS = {"tuned": 70, "build": 110}
# A uid that nobody else has: an item that lacks a call may kill all it can.
PLAIN_UID = 64999

no_sanitizers = pytest.mark.skipif(support.SANITIZED, reason="once is enough")
profiles = pytest.mark.parametrize("profile", ["tuned", "build"])


# ---------------------------------------------------------------- on the host, under the filter


class Attempt:
    """One run of an item in a directory of its own, as nobody in particular."""

    def __init__(self, argv, prefix=(), patience=30.0):
        directory = tempfile.mkdtemp(prefix="cordon-corpus-")
        os.chmod(directory, 0o777)
        identity = {"user": PLAIN_UID, "group": PLAIN_UID, "extra_groups": []}
        environment = {"PATH": "/usr/bin:/bin", "HOME": directory, "LANG": "C.UTF-8",
                       "USER": "user"}
        process = subprocess.Popen(
            [*map(str, prefix), *argv], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            **(identity if os.geteuid() == 0 else {}))
        try:
            self.out = process.communicate(timeout=patience)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            self.out = "(it hangs)"
        finally:
            # What it left behind, too.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.communicate()
            shutil.rmtree(directory, ignore_errors=True)
        self.code = process.returncode
        self.good = self.code == 0 and self.out.endswith("done\n")


def under(profile, argv, *flags, **keywords):
    return Attempt(argv, [TRY, "run", profile, *flags, "--"], **keywords)


def witnesses(profile):
    """For each call the item that stands for it."""
    sources = [WITNESSES["tuned"]] if profile == "tuned" else WITNESSES.values()
    return {call: item for source in sources for item, calls in source.items()
            for call in calls.split()}


def seccomp_try(*arguments):
    return subprocess.run([TRY, *arguments], check=True, capture_output=True, text=True,
                          timeout=60).stdout


def calls_of(profile):
    return seccomp_try("calls", profile).split()


def traced(profile, argv):
    """The calls that an item makes, also those that are refused it."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        log = f"{directory}/calls"
        attempt = Attempt(argv, ["strace", "-f", "-qq", "-o", log, TRY, "run", profile, "--"])
        assert attempt.good, (argv, attempt.code, attempt.out)
        # What comes before is seccomp-try's own.
        under_filter = support.read_text(log).rpartition("SECCOMP_SET_MODE_FILTER")[2]
        return set(re.findall(r"^\d+ +(\w+)\(", under_filter, re.M))


def in_parallel(work, items):
    with concurrent.futures.ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, items))


@no_sanitizers
@pytest.mark.host
@profiles
def test_every_call_of_a_profile_is_needed(profile, capsys):
    listed = calls_of(profile)
    assert len(listed) == len(set(listed)) <= MOST_CALLS[profile]
    witness = witnesses(profile)
    assert sorted(witness) == sorted(listed), "seccomp_corpus.WITNESSES and the profile differ"

    items = sorted(WORK[profile])
    made = dict(zip(items, in_parallel(lambda item: traced(profile, WORK[profile][item]), items)))
    with capsys.disabled():
        print(f"\n{profile}: {len(listed)} calls pass")
        for item in items:
            missing = sorted(made[item] - set(listed))
            print(f"  {item}: {len(made[item])} calls; without {' '.join(missing) or '-'}")
    for call, item in witness.items():
        assert call in made[item], f"{item} does not call {call}"

    def works_without(pair):
        call, item = pair
        # To hang is to fail.
        return under(profile, WORK[profile][item], "--without", call, patience=8.0).good

    unneeded = [call for (call, item), good in
                zip(witness.items(), in_parallel(works_without, witness.items())) if good]
    assert not unneeded, f"nothing fails without {unneeded}: they do not belong in {profile}"


@no_sanitizers
@pytest.mark.host
@profiles
def test_the_work_is_done_under_the_filter_alone(profile):
    items = sorted(WORK[profile])
    attempts = in_parallel(lambda item: under(profile, WORK[profile][item]), items)
    failed = {item: attempt.out for item, attempt in zip(items, attempts) if not attempt.good}
    assert not failed


@pytest.mark.host
@no_sanitizers
@pytest.mark.parametrize("profile", ["default", "tuned", "build"])
def test_the_document_has_the_profile_as_it_is(profile):
    table = seccomp_try("table", profile)
    assert table in DOCUMENT.read_text(), f"docs/seccomp.md: `seccomp-try table {profile}` differs"


@pytest.mark.host
@no_sanitizers
def test_loading_is_cheaper_the_shorter_the_program(capsys):
    figures = {name: json.loads(seccomp_try("time", name)) for name in ("default", "tuned", "build")}
    with capsys.disabled():
        print()
        for name, figure in figures.items():
            ratio = figure["median_us"] / figures["default"]["median_us"]
            print(f"  loading {name}: {figure['median_us']} us (p99 {figure['p99_us']}), "
                  f"{figure['instructions']} instructions, {ratio:.2f} of default")
    for figure in figures.values():
        assert figure["instructions"] < 256


# ---------------------------------------------------------------- in sandboxes


@contextlib.contextmanager
def sandbox(service, profile):
    """Runs programs in one sandbox, each in a directory of its own: their JSON."""
    sandbox_id = service.acquire(service.runtime, "--seccomp", profile, "--memory", "1G", "--disk", "256M",
                              "--tmp", "256M", "--pids", "200")
    start = 'd=$(mktemp -d) && cd "$d" && HOME=$d exec "$@"'
    try:
        yield lambda argv: service.cordon("exec", "--json", sandbox_id, "--", "sh", "-c", start, "item",
                                       *argv).json
    finally:
        service.release(sandbox_id)


@profiles
def test_the_work_is_done_in_a_sandbox(service, profile):
    failed = {}
    with sandbox(service, profile) as run:
        for item, argv in WORK[profile].items():
            result = run(argv)
            if result["exit_code"] != 0 or not result["stdout"]["text"].endswith("done\n"):
                failed[item] = result["stdout"]["text"] + result["stderr"]["text"]
            assert result["verdict"]["control"] == "none", (item, result["verdict"])
    assert not failed


@pytest.mark.skipif(not pathlib.Path("/usr/lib/python3.11/test/test_json").is_dir(),
                    reason="libpython3.11-testsuite is not installed")
@pytest.mark.parametrize("profile, tests", [("tuned", CPYTHON_TUNED), ("build", CPYTHON_BUILD)],
                         ids=["tuned", "build"])
def test_cpythons_own_tests_pass(service, profile, tests):
    with sandbox(service, profile) as run:
        result = run([PYTHON, "-m", "unittest", "-q", *(f"test.{name}" for name in tests.split())])
    assert result["exit_code"] == 0, result["stderr"]["text"][-3000:]


# ---------------------------------------------------------------- what a client sees


@profiles
def test_inspect_and_list_name_the_profile(service, profile):
    sandbox = service.acquire(service.runtime, "--seccomp", profile)
    card = service.cordon("inspect", "--json", sandbox).json
    listed = [s for s in service.cordon("ls", "--json").json["sandboxes"]
              if s["name"] == card["name"]][0]
    service.release(sandbox)
    passing = len(calls_of(profile))
    for info in (card, listed):
        assert info["seccomp"]["profile"] == profile
        assert info["seccomp"]["calls"] == passing < info["seccomp"]["known_calls"]
        assert f"seccomp {profile} ({passing} of {info['seccomp']['known_calls']} calls)" \
            in info["isolation"]


def test_runtimes_lists_the_profiles(service):
    answer = service.cordon("runtimes", "--json").json["seccomp_profiles"]
    assert [p["profile"] for p in answer] == ["default", "tuned", "build"]
    for each in answer:
        assert each["calls"] == len(calls_of(each["profile"]))
    assert "seccomp profile tuned: " in service.cordon("runtimes").out.decode()


def test_the_default_profile_is_on_when_none_is_named(service):
    sandbox = service.acquire(service.runtime)
    assert service.cordon("inspect", "--json", sandbox).json["seccomp"]["profile"] == "default"
    service.release(sandbox)


def test_an_unknown_profile_is_refused(service):
    for name in ("Default", "unconfined", "none"):
        done = service.cordon("run", "--json", "--seccomp", name, "--", "true")
        assert done.status == 125
        error = done.json["error"]
        assert (error["code"], error["reason"]) == ("INVALID_ARGUMENT", "UNKNOWN_SECCOMP_PROFILE")
        assert "default, tuned, build" in error["message"]
    done = service.cordon("run", "--json", "--seccomp", "a b", "--", "true")
    assert done.json["error"]["reason"] == "BAD_NAME"


@pytest.mark.host
def test_host_refuses_a_profile(host):
    for name in ("default", "tuned"):
        done = host.cordon("run", "--json", "--runtime", "host", "--seccomp", name, "--", "true")
        assert done.status == 125
        error = done.json["error"]
        assert (error["code"], error["reason"]) == ("INVALID_ARGUMENT", "SECCOMP_NOT_APPLIED")
        assert "no sandbox" in error["message"]


@pytest.mark.parametrize("profile", ["default", "tuned", "build"])
def test_entering_as_x32_is_verdict_syscall(service, profile):
    # getpid by its x32 number, in a process that is single-threaded.
    done = service.cordon("run", "--json", "--seccomp", profile, "--", PYTHON, "-c",
                       "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)")
    result = done.json
    assert result["signal"] == signal.SIGSYS
    verdict = result["verdict"]
    assert (verdict["control"], verdict["stopped"]) == ("syscall", True)


def test_a_refused_call_is_no_verdict(service):
    result = service.cordon("run", "--json", "--seccomp", "tuned", "--", PYTHON, "-c",
                         "import socket\ntry: socket.socket()\n"
                         "except PermissionError: print('refused')").json
    assert result["stdout"]["text"] == "refused\n"
    assert result["verdict"]["control"] == "none"
