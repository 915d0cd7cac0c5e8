"""Our operator with memory allocations traced by memray: `python -m e2e.bench.traced OUT FLAGS`.

FLAGS are those of `trainop operator`. The first SIGUSR2 starts the trace, the second one ends it and writes OUT.
"""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

from memray import FileDestination, FileFormat, Tracker

from trainop.cli import main as run_cli


class TraceSwitch:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._partial = out.with_suffix(".new")
        self._tracker: Tracker | None = None

    def toggle(self, *_: object) -> None:
        if self._tracker is None:
            destination = FileDestination(self._partial, overwrite=True)
            self._tracker = Tracker(
                destination=destination, trace_python_allocators=True, file_format=FileFormat.AGGREGATED_ALLOCATIONS
            )
            self._tracker.__enter__()
        else:
            gc.collect()  # garbage must not count as allocated memory
            self._tracker.__exit__(None, None, None)
            self._partial.rename(self._out)


def main() -> None:
    signal.signal(signal.SIGUSR2, TraceSwitch(Path(sys.argv[1])).toggle)
    sys.argv = ["trainop", "operator", *sys.argv[2:]]
    run_cli()


if __name__ == "__main__":
    main()
