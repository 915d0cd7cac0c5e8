"""Our operator, measuring the steps of its event loop: `python -m e2e.bench.probed OUT FLAGS`.

FLAGS are those of `trainop operator`. OUT gets a line of JSON for each step that is longer than all before, with `wall`
and `cpu` in milliseconds. `cpu` is the CPU time of the event loop's thread; `wall` includes the time that the thread
was not scheduled. SIGUSR1 resets the maximum.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from trainop.cli import main as run_cli
from trainop.runtime.builder import operator
from trainop.runtime.manager.stalls import StallWatch

INTERVAL = 0.002
"""Seconds between two measurements; subtracted from the wall time of a step."""


class StepRecorder(StallWatch):
    """Replaces the operator's stall watch and also runs it."""

    out: Path

    async def run(self) -> None:
        signal.signal(signal.SIGUSR1, self._reset)
        self._reset()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(StallWatch(threshold=0.1).run())
            tasks.create_task(self._measure_steps())

    def _reset(self, *_: object) -> None:
        self._longest = {"wall": 0.0, "cpu": 0.0}

    async def _measure_steps(self) -> None:
        while True:
            wall, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(INTERVAL)
            step = {"wall": time.monotonic() - wall - INTERVAL, "cpu": time.thread_time() - cpu}
            step = {name: round(1000 * value, 1) for name, value in step.items()}
            if any(step[name] > self._longest[name] for name in step):
                self._longest = {name: max(step[name], self._longest[name]) for name in step}
                with self.out.open("a") as out:
                    out.write(json.dumps(self._longest) + "\n")


def main() -> None:
    StepRecorder.out = Path(sys.argv[1])
    operator.StallWatch = StepRecorder  # type: ignore[attr-defined]  # imported there, not exported
    sys.argv = ["trainop", "operator", *sys.argv[2:]]
    run_cli()


if __name__ == "__main__":
    main()
