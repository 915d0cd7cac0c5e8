"""Our operator with its allocations traced: `python -m e2e.bench.traced OUT FLAGS`, the flags of `trainop operator`.

The first SIGUSR2 remembers what is held; the second writes what is held beyond that to OUT, as folded stacks in bytes.
"""

from __future__ import annotations

import signal
import sys
import tracemalloc
from pathlib import Path

DEPTH = 8
"""Frames that are kept of each allocation."""
ROOT = Path(__file__).resolve().parent.parent.parent


class Tracer:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._before: tracemalloc.Snapshot | None = None

    def look(self, *_: object) -> None:
        own = tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__)
        snapshot = tracemalloc.take_snapshot().filter_traces([own])
        if self._before is None:
            self._before = snapshot
            return
        fresh = self._out.with_suffix(".new")
        with fresh.open("w") as lines:
            for difference in snapshot.compare_to(self._before, "traceback"):
                if difference.size_diff > 0:
                    stack = ";".join(f"{_short(frame.filename)}:{frame.lineno}" for frame in difference.traceback)
                    lines.write(f"{stack} {difference.size_diff}\n")
        fresh.rename(self._out)


def _short(filename: str) -> str:
    """From the project's root, or from the package."""
    path = Path(filename)
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return str(path.relative_to(ROOT))
    return "/".join(path.parts[-2:])


def main() -> None:
    tracemalloc.start(DEPTH)
    signal.signal(signal.SIGUSR2, Tracer(Path(sys.argv[1])).look)
    from trainop.cli import main as operate  # noqa: PLC0415  # imports are traced, too

    sys.argv = ["trainop", "operator", *sys.argv[2:]]
    operate()


if __name__ == "__main__":
    main()
