"""Output end to end: exact, and held back when the client stops reading."""
import hashlib
import threading
import time

import pytest

import support
from support import Api, v1, wait_until

MEBIBYTE = 1 << 20


def test_64_mebibytes_arrive_exactly(on):
    instance, runtime = on
    program = ("import sys\n"
               "for n in range(64): sys.stdout.buffer.write(bytes([n]) * 1048576)")
    expected = hashlib.sha256()
    for n in range(64):
        expected.update(bytes([n]) * MEBIBYTE)
    process = instance.popen("run", "--runtime", runtime, "--output", "100M", "--wall", "60s", "--",
                             "python3", "-c", program)
    received, total = hashlib.sha256(), 0
    while chunk := process.stdout.read(1 << 16):
        received.update(chunk)
        total += len(chunk)
    error = process.stderr.read()
    assert process.wait(60) == 0, error
    process.stdout.close()
    process.stderr.close()
    assert total == 64 * MEBIBYTE
    assert received.digest() == expected.digest()
    assert error == b""


def test_head_and_tail_are_kept_past_the_cap_and_offsets_never_lie(on):
    instance, runtime = on
    program = "import sys\nfor n in range(200000): sys.stdout.write(f'{n:9d}\\n')"
    with Api(instance.address) as client:
        start = v1.ExecRequest(run=v1.RunStart(
            sandbox=client.spec(runtime, limits={"output_bytes": 100_000}),
            exec=v1.ExecSpec(argv=[b"python3", b"-c", program.encode()])))
        result, pieces = None, []
        for response in client.stub.Run(iter([start]), timeout=60):
            if response.HasField("output"):
                pieces.append((response.output.offset, response.output.data))
            elif response.HasField("result"):
                result = response.result
    truth = "".join(f"{n:9d}\n" for n in range(200000)).encode()
    assert result.stdout.total == len(truth) == 2_000_000
    delivered = sum(len(data) for _, data in pieces)
    assert delivered == result.stdout.total - result.stdout.dropped <= 100_000
    for offset, data in pieces:
        assert truth[offset:offset + len(data)] == data
    assert pieces[0][0] == 0, "the head"
    assert pieces[-1][0] + len(pieces[-1][1]) == len(truth), "the tail"


def family(instance):
    parts = [instance.broker, instance.agents]
    agents = [p for p in instance.sandbox_processes() if p not in parts]
    return parts + agents


def written_so_far(marker):
    """Bytes that the program has written, by the kernel's account."""
    for pid in support.processes_with(marker):
        for line in support.read_text(f"/proc/{pid}/io").splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
    return 0


def test_a_client_that_stops_reading_stops_the_program(on):
    instance, runtime = on
    marker = "cordon_writer_test"
    program = (f"import os; name = '{marker}'\n"
               "block = bytes(65536)\n"
               "while True: os.write(1, block)")
    with Api(instance.address) as client:
        start = v1.ExecRequest(run=v1.RunStart(
            sandbox=client.spec(runtime, limits={"output_bytes": 8 << 30, "wall_ms": 55_000}),
            exec=v1.ExecSpec(argv=[b"python3", b"-c", program.encode()])))
        hold = threading.Event()

        def requests():
            yield start
            hold.wait(60)

        call = client.stub.Run(requests(), timeout=60)
        for _ in range(8):  # it flows
            next(call)
        # Nobody reads now. Python's gRPC reads one message ahead at most.
        wait_until(lambda: written_so_far(marker) > 0, "the program writes")

        def settled():
            before = written_so_far(marker)
            time.sleep(0.5)  # an interval of measurement, not a wait for something
            return before == written_so_far(marker)

        wait_until(settled, "the program's writes block")
        blocked_at = written_so_far(marker)
        assert blocked_at < 64 * MEBIBYTE, "buffers on the way are bounded"
        memory = {p: support.resident_kib(p) for p in family(instance)}
        time.sleep(1.5)
        assert written_so_far(marker) == blocked_at
        for pid, before in memory.items():
            assert support.resident_kib(pid) <= before + 1024, support.describe_process(pid)
        # And it goes on when somebody reads again.
        for _ in range(2000):
            next(call)
        wait_until(lambda: written_so_far(marker) > blocked_at + MEBIBYTE, "it writes again")
        hold.set()
        call.cancel()


def test_memory_is_flat_while_much_output_flows(on):
    instance, runtime = on
    process = instance.popen("run", "--runtime", runtime, "--output", "4G", "--wall", "300s", "--",
                             "head", "-c", "600000000", "/dev/zero")
    parts = [instance.broker, instance.agents]
    total, at_start, largest = 0, None, {}
    while chunk := process.stdout.read(1 << 20):
        total += len(chunk)
        if at_start is None and total > 50_000_000:
            at_start = {p: support.resident_kib(p) for p in parts}
        if at_start is not None and total % (32 << 20) < (1 << 20):
            for part in parts:
                largest[part] = max(largest.get(part, 0), support.resident_kib(part))
    assert process.wait(60) == 0
    process.stdout.close()
    process.stderr.close()
    assert total == 600_000_000
    # AddressSanitizer keeps up to 256 MiB of what was freed.
    growth = 300 * 1024 if support.SANITIZED else 8 * 1024
    for part, before in at_start.items():
        assert largest[part] <= before + growth, support.describe_process(part)


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 1_000_001])
def test_standard_input_of_every_size(api, size):
    data = bytes(n * 31 % 251 for n in range(size))
    requests = [v1.ExecRequest(stdin=data[n:n + 300_000]) for n in range(0, size, 300_000)]
    ended = api.run(["cat"], stdin=True, requests=[*requests, v1.ExecRequest(close_stdin=True)],
                    sandbox=api.spec(limits={"output_bytes": 4 << 20}))
    assert ended.result.exit_code == 0
    assert ended.out == data


def test_standard_input_waits_for_a_program_that_does_not_read(service):
    """A slow reader stops the client, and the service's memory stays flat."""
    with Api(service.address) as client:
        sent = 0
        release = threading.Event()
        start = v1.ExecRequest(run=v1.RunStart(
            sandbox=client.spec(limits={"wall_ms": 50_000}),
            exec=v1.ExecSpec(argv=[b"sh", b"-c", b"echo up; read line < /dev/zero; exec sleep 50"],
                             stdin=True)))

        def requests():
            nonlocal sent
            yield start
            while not release.is_set():
                sent += 1 << 18
                yield v1.ExecRequest(stdin=bytes(1 << 18))

        call = client.stub.Run(requests(), timeout=60)
        next(call)

        def settled():
            before = sent
            time.sleep(0.5)  # an interval of measurement
            return before == sent

        wait_until(settled, "the client's writes block")
        assert sent < 64 * MEBIBYTE
        release.set()
        call.cancel()
