"""Where our operator's time and memory go under load.

python -m e2e.bench.profile [SCENARIO] [--sizes JSON] [--out FOLDER]
python -m e2e.bench.profile memory [--pods N]

py-spy samples the operator while a scenario runs: a flame graph (SVG) of CPU time, and the functions that lead it.
`memory` holds pods, as e2e.bench.scale does, and traces by which lines their memory was taken (memray): a flame graph
of bytes.
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

from e2e.bench.flame import draw
from e2e.bench.operators import HERE, OPERATORS, ROOT
from e2e.bench.processes import end_on_sigterm
from e2e.bench.scale import open_world
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.stage import open_stage
from e2e.cluster.build import build
from trainop.runtime.objects.metadata import Json

RATE = 200
"""Samples a second."""
FEW = 30
MEMORY = "memory"
REST = 5.0
"""Seconds after the last pod."""
WARM = 1000
"""Pods before those that are traced: connections and their buffers are there already."""


async def sample(scenario: str, sizes: Json, raw: Path) -> None:
    """Runs the scenario and leaves py-spy's folded stacks in `raw`."""
    end_on_sigterm()
    perform, usual = SCENARIOS[scenario]
    spy = Path(sys.executable).with_name("py-spy")
    async with open_stage(OPERATORS["trainop"]) as stage:
        command = [str(spy), "record", "--gil", "--pid", str(stage.program.pid), "--rate", str(RATE), "--format", "raw"]
        sampler = subprocess.Popen([*command, "--output", str(raw)], stderr=subprocess.DEVNULL)  # noqa: ASYNC220  # returns at once
        try:
            result = await perform(stage, {**usual, **sizes})
        finally:
            sampler.send_signal(signal.SIGINT)
            await asyncio.to_thread(sampler.wait, 30)
    print({name: round(value, 2) for name, value in result.items() if isinstance(value, int | float)})


def leaders(stacks: Iterable[str]) -> tuple[Counter[str], Counter[str], int]:
    """Samples by innermost function, by any function on the stack, and in all."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in stacks:
        frames, _, count = line.rpartition(" ")
        names = frames.split(";")
        own[names[-1]] += int(count)
        total.update(dict.fromkeys(names, int(count)))
    return own, total, own.total()


async def trace(pods: int, records: Path) -> None:
    """Leaves in `records` where the operator took the memory that so many more pods hold at rest."""
    end_on_sigterm()
    async with open_world(replace(OPERATORS["trainop"], module=("e2e.bench.traced", str(records)))) as world:
        await world.hold(WARM)
        before = world.program.memory().rss
        world.program.signal(signal.SIGUSR2)
        await world.hold(pods)
        await asyncio.sleep(REST)
        world.program.signal(signal.SIGUSR2)
        await world.until("the trace is written", 120, records.exists)
        print(f"resident {world.program.memory().rss:.0f} MiB, {before:.0f} before these pods, tracer included")


def fold(records: Path) -> Iterator[str]:
    """Stacks of what was not freed, in bytes. Arenas are left out: what lies in them is told one by one."""
    with FileReader(records) as reader:
        for record in reader.get_leaked_allocation_records(merge_threads=True):
            if record.allocator != AllocatorType.MMAP:
                frames = [f"{name} ({short(file)}:{line})" for name, file, line in reversed(record.stack_trace())]
                yield f"{';'.join(frames) or 'outside of Python'} {record.size}"


def short(file: str) -> str:
    """From the project's root, or from the package."""
    path = Path(file)
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return str(path.relative_to(ROOT))
    return "/".join(path.parts[-2:])


def show(stacks: Sequence[str], unit: str, factor: float) -> None:
    own, total, counted = leaders(stacks)
    for title, counter in (("innermost", own), ("anywhere on the stack", total)):
        print(f"\n{title}, {unit} of {factor * counted:.4g}")
        for name, count in counter.most_common(FEW):
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
        build()
        unit, factor = "seconds", 1 / RATE
        asyncio.run(sample(options.what, msgspec.json.decode(options.sizes), raw))
    stacks = raw.read_text().splitlines()
    show(stacks, unit, factor)
    (options.out / f"profile-{options.what}.svg").write_text(draw(stacks))


if __name__ == "__main__":
    main()
