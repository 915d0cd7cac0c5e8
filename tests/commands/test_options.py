"""How commands run: what serves for long gets the event loop of a server."""

from __future__ import annotations

import asyncio
import gc

import pytest
import uvloop

from trainop.commands.options import run_command


@pytest.mark.parametrize("serves", [False, True])
def test_what_serves_for_long_has_a_fast_loop_and_short_pauses(serves: bool, request: pytest.FixtureRequest):
    threshold = gc.get_threshold()
    request.addfinalizer(gc.unfreeze)
    request.addfinalizer(lambda: gc.set_threshold(*threshold))
    loops: list[bool] = []

    async def work() -> int:
        loops.append(isinstance(asyncio.get_running_loop(), uvloop.Loop))
        return 3

    with pytest.raises(SystemExit) as ended:
        run_command(work(), serves=serves)
    assert (ended.value.code, loops, gc.get_threshold() != threshold) == (3, [serves], serves)
