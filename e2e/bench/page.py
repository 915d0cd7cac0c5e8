"""What the server of the page costs while 64 replicas print 100 lines a second each, seen by one viewer.

python -m e2e.bench.page [--replicas 64] [--rate 100] [--seconds 20] [--together N]   a minute; 1 if a line is lost

A run in the background prints, `trainop ui` shows it, and a bare client reads the stream of the page as a browser
does. The CPU time is that of the process of `trainop ui` alone, from some seconds after the first line on. With
`--together`, an API server without pods sends N lines of a log in one TLS record: 1 is a kubelet's way. It needs less
of the machine, so that the rate is kept on a busy one, where 64 processes print late and so several lines at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from e2e.bench.processes import exit_on_sigterm
from e2e.cluster.daemons import DIE_WITH_PARENT, wait_until

SCRIPT = """
import sys, time
lines, rate = int(sys.argv[1]), float(sys.argv[2])
time.sleep(12)
began = time.monotonic()
for n in range(lines):
    print('line', n, 'loss 0.123456 of this step', flush=True)
    time.sleep(max(0, began + n / rate - time.monotonic()))
"""
PROGRAM = [sys.executable, "-m", "trainop"]
START = 300.0
"""Seconds until all replicas have printed, at most."""
QUIET = 30.0
"""Seconds without a line after which none is expected any more: the page goes on saying that it lives."""
WARM = 5.0
"""Seconds after the first line from which on is measured: what was printed by then came late and at once."""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Read(NamedTuple):
    """`lines`: of the replicas, all that arrived. `measured` of them took `seconds`, and `used` CPU seconds."""

    lines: int
    measured: int
    seconds: float
    used: float


async def read(url: str, expected: int, pid: int) -> Read:
    parts = urlsplit(url)
    headers = {"Authorization": f"Bearer {parts.fragment.partition('=')[2]}"}
    job = "default/PyTorchJob/many"
    loop, lines = asyncio.get_running_loop(), 0
    first = last = 0.0
    began: tuple[int, float, float] | None = None
    async with (
        asyncio.timeout(START),
        aiohttp.ClientSession(read_bufsize=2**22) as session,
        session.get(f"http://{parts.netloc}/events", params={"job": job}, headers=headers) as answer,
    ):
        answer.raise_for_status()
        while lines < expected and not (first and loop.time() - last > QUIET):
            line = await answer.content.readline()
            if not line:
                break
            if not line.startswith(b'data: {"first":'):
                continue
            last = loop.time()
            lines += sum(1 for _, label, _ in msgspec.json.decode(line[6:])["lines"] if label)
            first = first or loop.time()
            if began is None and loop.time() - first >= WARM:
                began = lines, loop.time(), cpu_seconds(pid)
    if began is None:
        raise SystemExit(f"{lines:,} of {expected:,} lines came, too few to measure; more --seconds?")
    before, at, used = began
    return Read(lines, lines - before, loop.time() - at, cpu_seconds(pid) - used)


@contextmanager
def printing_run(
    folder: Path, replicas: int, rate: int, seconds: int, environment: dict[str, str]
) -> Iterator[list[str]]:
    """A run in the background that prints; gives what `trainop ui` shows it with."""
    script = folder / "many.py"
    script.write_text(SCRIPT)
    run = ["run", "-d", "--network=addresses", str(script), f"--nproc={replicas}", "--", str(rate * seconds), str(rate)]
    subprocess.run([*PROGRAM, *run], check=True, env=environment)
    try:
        yield ["many-1"]
    finally:
        subprocess.run([*PROGRAM, "stop", "many-1"], env=environment, capture_output=True, check=False)


@contextmanager
def printing_server(folder: Path, replicas: int, rate: int, seconds: int, together: int) -> Iterator[list[str]]:
    """An API server that sends `together` lines of a log in one record."""
    numbers = map(str, (replicas, rate, rate * seconds, together))
    argv = [sys.executable, "-m", "e2e.bench.logserver", str(folder), *numbers]
    server = subprocess.Popen(argv, preexec_fn=DIE_WITH_PARENT)  # noqa: PLW1509  # see there
    kubeconfig = folder / "kubeconfig"
    try:
        assert wait_until(kubeconfig.exists, START), "the API server does not start"
        yield ["--kubeconfig", str(kubeconfig)]
    finally:
        server.terminate()
        server.wait()


def measure(folder: Path, given: argparse.Namespace) -> bool:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "HOME": str(folder)}
    shape = (folder, given.replicas, given.rate, given.seconds)
    printing = printing_server(*shape, given.together) if given.together else printing_run(*shape, environment)
    with printing as shown:
        page = subprocess.Popen(
            [*PROGRAM, "ui", *shown],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=DIE_WITH_PARENT,  # noqa: PLW1509  # see there
        )
        try:
            assert page.stdout is not None
            expected: int = given.replicas * given.rate * given.seconds
            found = asyncio.run(read(page.stdout.readline().strip(), expected, page.pid))
        finally:
            page.terminate()
            page.wait()
    cost = f"{found.used / found.seconds:.1%} of a core, {found.used / found.measured * 1e6:.1f} µs a line"
    rate = f"{found.measured / found.seconds:,.0f} a second"
    print(f"{found.lines:,} of {expected:,} lines, {rate}: {cost}; load {os.getloadavg()[0]:.0f}")
    return found.lines == expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--together", type=int, help="lines in a record, of a server without pods; default: a real run")
    given = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="trainop-page-") as folder:
        return 0 if measure(Path(folder), given) else 1


if __name__ == "__main__":
    sys.exit(main())
