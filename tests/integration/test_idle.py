"""At rest: no CPU, little memory."""
import time

import support
from support import wait_until


def ticks(pids):
    return {pid: support.cpu_ticks(pid) for pid in pids}


def is_at_rest(pids, seconds):
    """True if none of them used more than one clock tick in that time."""
    before = ticks(pids)
    time.sleep(seconds)  # the interval of the measurement
    return all(after - before[pid] <= 1 for pid, after in ticks(pids).items())


def agents_of(instance):
    return [p for p in instance.sandbox_processes() if p not in (instance.broker, instance.agents)]


def test_nothing_uses_cpu_at_rest(service):
    sandbox = service.acquire(service.runtime)
    assert service.cordon("exec", sandbox, "--", "true").status == 0
    everyone = [service.process.pid, service.broker, service.agents, *agents_of(service)]
    assert len(everyone) >= 4
    # What the exec caused may still be settling.
    wait_until(lambda: is_at_rest(everyone, 1.0), "work ends")
    assert is_at_rest(everyone, 3.0), {support.describe_process(p): t for p, t in ticks(everyone).items()}
    service.release(sandbox)


def proportional_kib(pid):
    for line in support.read_text(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def test_memory_of_twenty_idle_sandboxes(service, capsys):
    at_rest = proportional_kib(service.broker) + proportional_kib(service.agents)
    sandboxes = [service.acquire(service.runtime) for _ in range(20)]
    inside = [proportional_kib(p) for p in agents_of(service)]
    services = proportional_kib(service.broker) + proportional_kib(service.agents)
    each = (sum(inside) + services - at_rest) / 20
    with capsys.disabled():
        print(f"\n20 idle sandboxes: {each:.0f} KiB each "
              f"({sum(inside) / 20:.0f} inside, {(services - at_rest) / 20:.0f} in the services)")
    for sandbox in sandboxes:
        service.release(sandbox)
    assert len(inside) >= 20
    # The benchmark counts cgroups and kernel memory as well, against 1.5 MB.
    assert each < 1536
