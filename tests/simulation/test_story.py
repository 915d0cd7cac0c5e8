"""Determinism: a seed gives exactly the same trace in every process and on every host."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulation.examine import examine_seed
from tests.simulation.themes import THEMES

ROOT = Path(__file__).parents[2]
SEEDS = range(len(THEMES))
"""One of each theme."""

PROGRAM = "from tests.simulation.test_story import tell; tell()"


def digest(seed: int) -> str:
    """Digest of the whole trace of a seed, log lines included."""
    outcome = examine_seed(seed, everything=True).outcome
    return hashlib.sha256("\n".join(outcome.lines()).encode()).hexdigest()


def tell() -> None:
    """Print the digests, in the reverse order of the test."""
    reported = {seed: digest(seed) for seed in reversed(SEEDS)}
    print(*(reported[seed] for seed in SEEDS))  # noqa: T201  # to the test that has started this


def digests_elsewhere(folder: Path, **environ: str) -> list[str]:
    """The digests computed by a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_a_seed_always_gives_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The trace does not depend on earlier runs, time, host, hash seed, memory addresses or time zone."""
    reported = [digest(seed) for seed in SEEDS]
    assert len(set(reported)) == len(SEEDS)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert reported == [digest(seed) for seed in SEEDS]
    monkeypatch.undo()
    assert reported == digests_elsewhere(ROOT, PYTHONHASHSEED="1")
    assert reported == digests_elsewhere(
        tmp_path, PYTHONHASHSEED="2", PYTHONMALLOC="malloc", TZ="Asia/Tokyo", LC_ALL="C"
    )
