#!/usr/bin/env python3
"""Runs clang-tidy over the tracked .cc files of a build directory, in parallel.

A file that passed is remembered by a hash of all that its result depends on
(its text, every header and schema of the project, its compile command, .clang-tidy and
the version of clang-tidy), so that a second run takes seconds.
"""
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def digest(*parts):
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(hashlib.sha256(part).digest())
    return hasher.hexdigest()


def read(path):
    with open(path, "rb") as stream:
        return stream.read()


def main():
    objects = sys.argv[1]
    tracked = set(output("git", "ls-files", "*.cc").split())
    version = output("clang-tidy", "--version").encode()
    configuration = read(".clang-tidy")
    # Any of these changes the result of any file that includes it; the lint
    # directory compiles nothing, so who includes what is not known.
    shared = output("git", "ls-files", "*.h", "*.capnp", "*.proto").split()
    headers = [read(path) for path in shared if os.path.exists(path)]
    cache = "build/tidy-cache"
    os.makedirs(cache, exist_ok=True)

    jobs, passed_before = [], 0
    for entry in json.loads(read(os.path.join(objects, "compile_commands.json"))):
        source = os.path.normpath(os.path.join(objects, entry["file"]))
        if source not in tracked:
            continue
        tracked.discard(source)
        key = os.path.join(cache, digest(version, configuration, entry["command"].encode(),
                                         read(source), *headers))
        if os.path.exists(key):
            passed_before += 1
        else:
            jobs.append((source, key))
    not_built = sorted(tracked)
    if not_built:
        print("clang-tidy: not part of the build, so not analysed:", *not_built)
    if not jobs and not passed_before:
        sys.exit(f"clang-tidy: no file of the project in {objects}/compile_commands.json")

    def analyse(job):
        source, key = job
        run = subprocess.run(["clang-tidy", "-p", objects, "--quiet",
                              "--extra-arg=-Wno-unknown-warning-option",
                              # KJ_ASSERT_NONNULL, SCMP_CMP64, and generated servers' overloads.
                              "--extra-arg=-Wno-gnu-statement-expression",
                              "--extra-arg=-Wno-c99-extensions",
                              "--extra-arg=-Wno-overloaded-virtual", source],
                             capture_output=True, text=True)
        findings = run.stdout.strip()
        if run.returncode == 0 and not findings:
            open(key, "w").close()
            return source, ""
        return source, findings or run.stderr

    workers = min(len(os.sched_getaffinity(0)), int(os.environ.get("CORDON_JOBS", "64")))
    print(f"clang-tidy: {len(jobs)} to analyse, {passed_before} unchanged since they passed")
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for number, (source, findings) in enumerate(pool.map(analyse, jobs), 1):
            print(f"[{number}/{len(jobs)}] {source}", flush=True)
            if findings:
                failures += 1
                print(findings, flush=True)
    print(f"clang-tidy: {failures} files with findings")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
