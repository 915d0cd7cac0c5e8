"""CPU and memory profiles of our operator under load.

python -m e2e.bench.profile [SCENARIO] [--sizes JSON] [--out FOLDER]
python -m e2e.bench.profile memory [--pods N]

For CPU time, py-spy samples the operator while a scenario runs. For memory, pods are held as in e2e.bench.scale, and
memray records which lines allocated the memory that they retain. Both write a flame graph (SVG) and print the top
functions.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog
import uvloop
from memray import AllocatorType, FileReader

from e2e.bench.cluster import NEEDED
from e2e.bench.flame import draw
from e2e.bench.harness import open_harness
from e2e.bench.operators import HERE, OPERATORS, ROOT
from e2e.bench.processes import cancel_on_sigterm
from e2e.bench.scale import open_scale_harness
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.targets import rivals
from e2e.cluster.build import build
from e2e.cluster.daemons import DIE_WITH_PARENT
from trainop.runtime.objects.metadata import Json

RATE = 200
"""Samples per second."""
TOP = 30
MEMORY = "memory"
SETTLE_SECONDS = 5.0
"""Seconds to wait after the last pod."""
WARM_UP_PODS = 1000
"""Pods created before the trace, so that connections and their buffers already exist."""


async def sample(scenario: str, sizes: Json, raw: Path) -> None:
    """Runs the scenario and writes py-spy's folded stacks to `raw`."""
    cancel_on_sigterm()
    setting = SCENARIOS[scenario]
    spy = Path(sys.executable).with_name("py-spy")
    async with open_harness(OPERATORS[rivals(scenario)[0]], endpoints=setting.endpoints) as harness:
        pid = str(harness.program.pid)
        command = [str(spy), "record", "--gil", "--pid", pid, "--rate", str(RATE), "--format", "raw"]
        sampler = subprocess.Popen(  # noqa: ASYNC220  # returns at once
            [*command, "--output", str(raw)],
            stderr=subprocess.DEVNULL,
            preexec_fn=DIE_WITH_PARENT,  # noqa: PLW1509  # see there
        )
        try:
            result = await setting.perform(harness, {**setting.sizes, **sizes})
        finally:
            sampler.send_signal(signal.SIGINT)
            await asyncio.to_thread(sampler.wait, 30)
    print({name: round(value, 2) for name, value in result.items() if isinstance(value, int | float)})


def hottest(stacks: Iterable[str]) -> tuple[Counter[str], Counter[str], int]:
    """Samples by innermost function, by any function on the stack, and the total number."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in stacks:
        frames, _, count = line.rpartition(" ")
        names = frames.split(";")
        own[names[-1]] += int(count)
        total.update(dict.fromkeys(names, int(count)))
    return own, total, own.total()


async def trace(pods: int, records: Path) -> None:
    """Writes to `records` the allocations that `pods` more pods retain."""
    cancel_on_sigterm()
    async with open_scale_harness(replace(OPERATORS["trainop"], module=("e2e.bench.traced", str(records)))) as harness:
        await harness.add_pods(WARM_UP_PODS)
        before = harness.program.memory().rss
        harness.program.signal(signal.SIGUSR2)
        await harness.add_pods(pods)
        await asyncio.sleep(SETTLE_SECONDS)
        harness.program.signal(signal.SIGUSR2)
        await harness.wait_until("the trace is written", 120, records.exists)
        print(f"resident {harness.program.memory().rss:.0f} MiB, {before:.0f} before these pods, tracer included")


def fold(records: Path) -> Iterator[str]:
    """Folded stacks of retained allocations in bytes. Arenas are omitted, because their contents are recorded too."""
    with FileReader(records) as reader:
        for record in reader.get_leaked_allocation_records(merge_threads=True):
            if record.allocator != AllocatorType.MMAP:
                frames = [f"{name} ({short(file)}:{line})" for name, file, line in reversed(record.stack_trace())]
                yield f"{';'.join(frames) or 'outside of Python'} {record.size}"


def short(file: str) -> str:
    """The path relative to the project's root, or the last two components of a library's path."""
    path = Path(file)
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return str(path.relative_to(ROOT))
    return "/".join(path.parts[-2:])


def show(stacks: Sequence[str], unit: str, factor: float) -> None:
    own, total, counted = hottest(stacks)
    for title, counter in (("innermost", own), ("anywhere on the stack", total)):
        print(f"\n{title}, {unit} of {factor * counted:.4g}")
        for name, count in counter.most_common(TOP):
            print(f"{factor * count:7.2f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="s1", choices=(*SCENARIOS, MEMORY))
    parser.add_argument("--sizes", default="{}")
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=HERE / "report")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    raw: Path = options.out / "results" / f"profile-{options.what}.folded"
    raw.parent.mkdir(parents=True, exist_ok=True)
    raw.unlink(missing_ok=True)
    if options.what == MEMORY:
        unit, factor = "KiB per pod", 1 / 1024 / options.pods
        records = raw.with_suffix(".bin").absolute()
        records.unlink(missing_ok=True)
        uvloop.run(trace(options.pods, records))
        raw.write_text("\n".join(fold(records)))
        records.unlink()
    else:
        build(NEEDED)
        unit, factor = "seconds", 1 / RATE
        asyncio.run(sample(options.what, msgspec.json.decode(options.sizes), raw))
    stacks = raw.read_text().splitlines()
    show(stacks, unit, factor)
    (options.out / f"profile-{options.what}.svg").write_text(draw(stacks))


if __name__ == "__main__":
    main()
