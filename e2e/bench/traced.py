"""Our operator with its allocations traced by memray: `python -m e2e.bench.traced OUT FLAGS`, the flags of
`trainop operator`. The first SIGUSR2 begins the trace, the second ends it: OUT then tells what was taken in between.
"""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

from memray import FileDestination, FileFormat, Tracker

from trainop.cli import main as operate


class Switch:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._fresh = out.with_suffix(".new")
        self._tracker: Tracker | None = None

    def flip(self, *_: object) -> None:
        if self._tracker is None:
            where = FileDestination(self._fresh, overwrite=True)
            self._tracker = Tracker(
                destination=where, trace_python_allocators=True, file_format=FileFormat.AGGREGATED_ALLOCATIONS
            )
            self._tracker.__enter__()
        else:
            gc.collect()  # what nobody holds is only not thrown away yet
            self._tracker.__exit__(None, None, None)
            self._fresh.rename(self._out)


def main() -> None:
    signal.signal(signal.SIGUSR2, Switch(Path(sys.argv[1])).flip)
    sys.argv = ["trainop", "operator", *sys.argv[2:]]
    operate()


if __name__ == "__main__":
    main()
