"""The plain loop of examples/survive in `trainop run`: it is interrupted in all ways, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

from e2e.survive.examples import loop
from e2e.survive.locally import STALL, running
from e2e.survive.story import Story


def test_the_loop_survives_every_interruption(tmp_path: Path) -> None:
    with running(loop(backend="numpy"), tmp_path, "--network", "addresses") as stage:
        story = Story(stage)
        story.begin()
        story.preempt()
        story.drain()
        story.kill()
        story.stall(STALL)
        story.finish()
    assert len(story.told) == 4
