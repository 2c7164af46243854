#!/usr/bin/env python3
"""Counts test results from the files that the runners wrote.

Prints what failed and what was skipped, a line per step, and last
"N passed, N failed". What ought to be there and is not, a crash, and an exit
status that no failed case explains each count as a failure.
"""
import argparse
import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field


@dataclass
class Step:
    name: str
    passed: int = 0
    failed: list = field(default_factory=list)
    skipped: list = field(default_factory=list)


def count_cases(step, path, label):
    """Adds a JUnit XML file's cases. True if it could be read whole."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return False
    for case in root.iter("testcase"):
        name = f"{label}{case.get('classname', '')}.{case.get('name', '')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            step.failed.append(name)
        elif skip is not None or case.get("status") == "notrun":
            reason = (skip.get("message") or "").strip() if skip is not None else ""
            # GoogleTest's begins with a line that is file and line number.
            step.skipped.append(f"{name}: {reason.splitlines()[-1] if reason else 'no reason given'}")
        else:
            step.passed += 1
    return True


def explain(step, before, status, what):
    """A bad end that no failed case accounts for is a failure of its own."""
    if status != 0 and len(step.failed) == before:
        step.failed.append(f"{what} ended badly (status {status}) though no case failed")


def from_command(value):
    name, status = value.rsplit("=", 1)
    step = Step(name)
    if status != "0":
        step.failed.append(f"{name}: exit status {status}")
    return step


def from_pytest(value):
    name, status, path = value.split("=", 2)
    step = Step(name)
    if not count_cases(step, path, ""):
        step.failed.append(f"{name}: no readable {path}")
    elif step.passed + len(step.failed) == 0:
        step.failed.append(f"{name}: no test ran")
    explain(step, 0, int(status), name)
    return step


def from_meson(value):
    name, status, log, reports = value.split("=", 3)
    step = Step(name)
    try:
        with open(log, encoding="utf-8") as lines:
            tests = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError):
        tests = []
    if not tests:
        step.failed.append(f"{name}: no tests in {log}")
    for test in tests:
        good = test["result"] in ("OK", "EXPECTEDFAIL")
        program = os.path.basename(test["command"][0])
        report = os.path.join(reports, f"{program}.xml")
        before = len(step.failed)
        if count_cases(step, report, f"{test['name']}: "):
            # Counted once, also where two tests run the same program.
            os.rename(report, report + ".counted")
            explain(step, before, 0 if good else 1, test["name"])
        elif good:
            step.passed += 1
        elif test["result"] == "SKIP":
            step.skipped.append(f"{test['name']}: skipped by exit status 77")
        else:
            step.failed.append(f"{test['name']}: {test['result']} (status {test.get('returncode')})")
    explain(step, 0, int(status), name)
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", action="append", default=[], metavar="NAME=STATUS")
    parser.add_argument("--meson", action="append", default=[], metavar="NAME=STATUS=LOG=REPORTS")
    parser.add_argument("--pytest", action="append", default=[], metavar="NAME=STATUS=XML")
    arguments = parser.parse_args()

    steps = [from_command(v) for v in arguments.command]
    runs = [from_meson(v) for v in arguments.meson] + [from_pytest(v) for v in arguments.pytest]
    steps += runs
    if not runs:
        steps.append(Step("results", failed=["no test was run"]))

    for step in steps:
        for entry in step.skipped:
            print(f"skipped  {entry}")
    for step in steps:
        for entry in step.failed:
            print(f"FAILED   {entry}")
    for step in runs:
        print(f"{step.name}: {step.passed} passed, {len(step.failed)} failed, "
              f"{len(step.skipped)} skipped")
    passed = sum(step.passed for step in steps)
    failed = sum(len(step.failed) for step in steps)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
