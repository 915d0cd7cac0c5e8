"""Where our operator's time and memory go under load.

python -m e2e.bench.profile [SCENARIO] [--sizes JSON] [--out FOLDER]
python -m e2e.bench.profile memory

py-spy samples the operator while a scenario runs: a flame graph (SVG) of CPU time, and the functions that lead it.
`memory` holds pods and traces by which lines their memory was taken (tracemalloc): a flame graph of bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from e2e.bench.flame import draw
from e2e.bench.operators import HERE, OPERATORS
from e2e.bench.processes import end_on_sigterm
from e2e.bench.scenarios import SCENARIOS
from e2e.bench.stage import open_stage
from e2e.cluster.build import build
from trainop.runtime.objects import Json

RATE = 200
"""Samples a second."""
FEW = 30
MEMORY = "memory"


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


async def trace(sizes: Json, raw: Path) -> int:
    """Leaves in `raw` where the operator took the memory that it holds at rest beyond what it had before the first of
    so many pods; returns how many."""
    end_on_sigterm()
    jobs, each = sizes["jobs"], sizes["workers"] + 1
    names = [f"job-{number}" for number in range(jobs)]
    operator = replace(OPERATORS["trainop"], module=("e2e.bench.traced", str(raw)))
    async with open_stage(operator) as stage:
        stage.program.signal(signal.SIGUSR2)
        await stage.at_rest()
        await stage.jobs.post(names, sizes["workers"])
        await stage.until("all pods are counted", lambda: stage.jobs.whole(names, each))
        await stage.at_rest()
        stage.program.signal(signal.SIGUSR2)
        await stage.until("the trace is written", raw.exists, 60)
    return int(jobs * each)


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
    parser.add_argument("--out", type=Path, default=HERE / "report")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    build()
    raw: Path = options.out / "results" / f"profile-{options.what}.folded"
    raw.parent.mkdir(parents=True, exist_ok=True)
    raw.unlink(missing_ok=True)
    sizes = msgspec.json.decode(options.sizes)
    if options.what == MEMORY:
        unit, factor = "KiB per pod", 1 / 1024 / asyncio.run(trace({"jobs": 100, "workers": 7, **sizes}, raw))
    else:
        unit, factor = "seconds", 1 / RATE
        asyncio.run(sample(options.what, sizes, raw))
    stacks = raw.read_text().splitlines()
    show(stacks, unit, factor)
    (options.out / f"profile-{options.what}.svg").write_text(draw(stacks))


if __name__ == "__main__":
    main()
