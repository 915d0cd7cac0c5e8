"""The initial list of ten thousand pods: pauses of the event loop, memory and processor time.

Measured in a process of its own, and in processor time, so that other processes on the machine do not count.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.runtime.scripted import HANG, NO_STREAMED_LISTS, ScriptedTransport, Streamed, json_response, pod
from trainop.engine.children import decode_pod
from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Response
from trainop.runtime.clock import SystemClock
from trainop.runtime.objects.metadata import PODS

COUNT, PER_PAGE = 10_000, 250


def page_of(first: int) -> Response:
    """Pods of 5 KiB, as from a kubelet, with what an operator does not read."""
    items = []
    for number in range(first, first + PER_PAGE):
        obj = pod(f"p{number:05}", number + 1, app="train")
        obj["spec"] = {"containers": [{"name": "c", "env": [{"name": "PAD", "value": "x" * 4800}]}]}
        items.append(msgspec.Raw(msgspec.json.encode(obj)))
    more = "" if first + PER_PAGE == COUNT else f"t{first}"
    return json_response(
        {"kind": "PodList", "metadata": {"resourceVersion": "10000", "continue": more}, "items": items}
    )


def resident() -> int:
    """Bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


async def load() -> dict[str, float]:
    """Seconds and bytes that the initial list takes."""
    pages = [page_of(first) for first in range(0, COUNT, PER_PAGE)]
    clock = SystemClock()
    transport = ScriptedTransport(NO_STREAMED_LISTS, *pages, Streamed([HANG]))
    client = Client(transport, clock=clock, rng=random.Random(1))
    informer = Informer(client, PODS, decode_pod, clock=clock, rng=random.Random(1))
    gc.collect()
    before, longest, began = resident(), 0.0, time.process_time()

    async def watch_pauses() -> None:
        nonlocal longest
        while True:
            start = time.process_time()
            await asyncio.sleep(0)
            longest = max(longest, time.process_time() - start)

    watching = asyncio.create_task(watch_pauses())
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    spent = time.process_time() - began
    for task in (watching, running):
        task.cancel()
    await asyncio.gather(watching, running, return_exceptions=True)
    assert len(informer.store.list()) == COUNT
    return {"longest": longest, "spent": spent, "grown": resident() - before}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.case("runtime-16", "abc")
def test_ten_thousand_pods():
    command = [sys.executable, "-c", "from tests.runtime.test_informer_load import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["longest"] < 0.1
    assert found["grown"] < 130 * 1024 * 1024
    assert found["spent"] < 15


def main() -> None:
    sys.stdout.write(json.dumps(asyncio.run(load())))
