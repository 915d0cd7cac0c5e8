"""Our operator with a probe in its event loop: `python -m e2e.bench.probed OUT FLAGS`, the flags of `trainop operator`.

OUT gets a line of JSON for each step of the loop that is longer than all before: `wall` and `cpu` in milliseconds.
`cpu` is what the loop's thread used meanwhile; `wall` contains the time that others had it, too.
SIGUSR1 forgets what was the longest.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from trainop import operator
from trainop.cli import main as operate
from trainop.runtime.manager.stalls import StallWatch

EVERY = 0.002
"""Seconds between two beats; so much less than told is a step."""


class Probe(StallWatch):
    """Takes the place of the operator's own stall watch, and does its work as well."""

    out: Path

    async def run(self) -> None:
        signal.signal(signal.SIGUSR1, self._forget)
        self._forget()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(StallWatch(threshold=0.1).run())
            tasks.create_task(self._beat_on())

    def _forget(self, *_: object) -> None:
        self._longest = {"wall": 0.0, "cpu": 0.0}

    async def _beat_on(self) -> None:
        while True:
            wall, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(EVERY)
            step = {"wall": time.monotonic() - wall - EVERY, "cpu": time.thread_time() - cpu}
            step = {name: round(1000 * value, 1) for name, value in step.items()}
            if any(step[name] > self._longest[name] for name in step):
                self._longest = {name: max(step[name], self._longest[name]) for name in step}
                with self.out.open("a") as out:
                    out.write(json.dumps(self._longest) + "\n")


def main() -> None:
    Probe.out = Path(sys.argv[1])
    operator.StallWatch = Probe  # type: ignore[attr-defined]  # the operator has it from elsewhere
    sys.argv = ["trainop", "operator", *sys.argv[2:]]
    operate()


if __name__ == "__main__":
    main()
