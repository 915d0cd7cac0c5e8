"""Where our operator's time and memory go under load.

python -m e2e.bench.profile [SCENARIO] [--sizes JSON] [--out FOLDER]

py-spy samples the operator while a scenario runs: a flame graph (SVG) of CPU time, and the functions that lead it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
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

RATE = "200"
FEW = 30


async def sample(scenario: str, sizes: Json, raw: Path) -> None:
    """Runs the scenario and leaves py-spy's folded stacks in `raw`."""
    end_on_sigterm()
    perform, usual = SCENARIOS[scenario]
    spy = Path(sys.executable).with_name("py-spy")
    async with open_stage(OPERATORS["trainop"]) as stage:
        command = [str(spy), "record", "--pid", str(stage.program.pid), "--rate", RATE, "--format", "raw"]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="s1", choices=tuple(SCENARIOS))
    parser.add_argument("--sizes", default="{}")
    parser.add_argument("--out", type=Path, default=HERE / "report")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    build()
    options.out.mkdir(parents=True, exist_ok=True)
    raw = options.out / f"profile-{options.scenario}.folded"
    asyncio.run(sample(options.scenario, msgspec.json.decode(options.sizes), raw))
    stacks = raw.read_text().splitlines()
    (options.out / f"profile-{options.scenario}.svg").write_text(draw(stacks))
    own, total, samples = leaders(stacks)
    for title, counter in (("innermost", own), ("anywhere on the stack", total)):
        print(f"\n{title}, % of {samples} samples")
        for name, count in counter.most_common(FEW):
            print(f"{100 * count / samples:6.1f}  {name}")


if __name__ == "__main__":
    main()
