"""The event loop with virtual time."""

from __future__ import annotations

import asyncio
import threading

from tests.runtime.virtual_time import virtual_time


@virtual_time
async def test_no_time_passes_while_a_thread_works():
    """Otherwise a timeout would depend on the load of the machine."""
    loop = asyncio.get_running_loop()
    release = threading.Event()
    real = threading.Timer(0.2, release.set)
    real.start()
    async with asyncio.timeout(1):
        await asyncio.to_thread(release.wait)
    assert loop.time() == 0
    await asyncio.sleep(5)
    assert loop.time() == 5
    real.join()
