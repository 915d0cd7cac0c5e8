"""The informer and the queue of the runtime beside what one would write without it, in one run.

python -m e2e.bench.runtime

Ten thousand pods of 5 KiB arrive in pages of a list: seconds until they are held, the longest stall of the event loop,
and the growth of memory, once with `Informer` and the operator's decoder, once with dictionaries as `json` makes them.
Each is measured in a process of its own. Then adds to the work queue, beside a set and an `asyncio.Queue`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from e2e.bench.floor import objects
from trainop.controllers.observe import CHILD_INDICES, decode_pod
from trainop.runtime.client import PAGE_SIZE, Client
from trainop.runtime.clock import SystemClock
from trainop.runtime.informer import Informer
from trainop.runtime.objects import Key
from trainop.runtime.resource import PODS
from trainop.runtime.transport import Request, Response
from trainop.runtime.workqueue import WorkQueue

PODS_HELD = 10_000
POD_BYTES = 5 * 1024
ADDS = 100_000


def make_page(first: int) -> bytes:
    """A page of a PodList as the API server sends it, with `managedFields` that fill each pod up to 5 KiB."""
    bodies = [body for resource, body in objects(-(-PAGE_SIZE // 8), 7) if resource is PODS][:PAGE_SIZE]
    items = []
    for number, body in enumerate(bodies, first):
        metadata = body["metadata"] | {"name": f"pod-{number}", "uid": str(uuid.UUID(int=number))}
        metadata |= {"resourceVersion": str(number + 1), "creationTimestamp": "2026-01-01T00:00:00Z"}
        pod = body | {"metadata": metadata, "status": {"phase": "Running", "podIP": "10.1.1.1"}}
        padding = POD_BYTES - len(msgspec.json.encode(pod)) - 80
        metadata["managedFields"] = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:x": "y" * padding}}]
        items.append(pod)
    last = first + PAGE_SIZE >= PODS_HELD
    meta = {"resourceVersion": str(PODS_HELD), "continue": "" if last else str(first + PAGE_SIZE)}
    return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items})


class Silence:
    """A watch on which nothing happens."""

    status = 200
    headers: dict[str, str] = {}  # noqa: RUF012  # never written

    async def chunks(self) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def close(self) -> None:
        """Nothing to end."""


class Pages:
    """A transport with one list, its pages made before the clock starts, and a silent watch."""

    def __init__(self, folder: Path) -> None:
        self.paths = {str(path.stem): path for path in folder.iterdir()}

    async def send(self, request: Request) -> Response:
        return Response(200, {}, self.paths[request.query.get("continue", "0")].read_bytes())

    async def open(self, request: Request) -> Any:
        if "sendInitialEvents" in request.query:  # streamed lists have no pages
            body = b'{"kind":"Status","code":422,"reason":"Invalid","message":"sendInitialEvents is forbidden"}'
            return Refusal(body)
        return Silence()

    async def close(self) -> None:
        """Nothing is open."""


class Refusal(Silence):
    status = 422

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.body


async def with_informer(transport: Pages) -> object:
    informer = Informer(Client(transport), PODS, decode_pod, indices=CHILD_INDICES)
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    assert len(informer.store) == PODS_HELD
    running.cancel()
    return informer.store


async def with_dictionaries(transport: Pages) -> object:
    """What a Python operator does that takes whole lists as JSON."""
    store: dict[Key, Any] = {}
    token = "0"
    while token:
        response = await transport.send(Request("GET", PODS.path(), {"continue": token}))
        page = json.loads(response.body)
        for item in page["items"]:
            store[Key(item["metadata"]["namespace"], item["metadata"]["name"])] = item
        token = page["metadata"]["continue"]
        await asyncio.sleep(0)
    return store


WAYS: dict[str, Callable[[Pages], Awaitable[object]]] = {
    "informer": with_informer,
    "dictionaries": with_dictionaries,
}


async def measure_list(way: str, folder: Path) -> dict[str, float]:
    stalls = [0.0]

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0)
            stalls.append(time.monotonic() - before)

    transport = Pages(folder)
    gc.collect()
    before = resident_mib()
    ticking = asyncio.create_task(tick())
    start = time.monotonic()
    held = await WAYS[way](transport)
    seconds = time.monotonic() - start
    ticking.cancel()
    gc.collect()
    grown = resident_mib() - before
    del held
    return {"seconds": seconds, "stall_ms": 1000 * max(stalls), "mib": grown}


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


async def measure_queues() -> dict[str, float]:
    """Adds a second, each key new, and then each known; and hand-outs with the end of the work told."""
    keys = [Key("ns", f"job-{number}") for number in range(ADDS)]
    queue: WorkQueue[Key] = WorkQueue("bench", SystemClock())
    figures = {"queue adds/s, new keys": rate(queue.add, keys)}
    figures["queue adds/s, known keys"] = rate(queue.add, keys)
    start = time.perf_counter()
    for _ in keys:
        queue.done(await queue.get())
    figures["queue get and done/s"] = ADDS / (time.perf_counter() - start)
    plain: asyncio.Queue[Key] = asyncio.Queue()
    known: set[Key] = set()

    def add(key: Key) -> None:
        if key not in known:
            known.add(key)
            plain.put_nowait(key)

    figures["set and asyncio.Queue adds/s, new keys"] = rate(add, keys)
    return figures


def rate(add: Callable[[Key], None], keys: Sequence[Key]) -> float:
    start = time.perf_counter()
    for key in keys:
        add(key)
    return len(keys) / (time.perf_counter() - start)


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if len(sys.argv) == 3:
        print(json.dumps(asyncio.run(measure_list(sys.argv[1], Path(sys.argv[2])))))
        return

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        for first in range(0, PODS_HELD, PAGE_SIZE):
            (Path(name) / f"{first}.json").write_bytes(make_page(first))
        print(f"{PODS_HELD} pods of {POD_BYTES} bytes in pages of {PAGE_SIZE}, three repetitions")
        for _ in range(3):
            for way in WAYS:
                command = [sys.executable, "-m", "e2e.bench.runtime", way, name]
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                print(
                    f"{way:14} held after {found['seconds']:.2f} s, longest stall {found['stall_ms']:.0f} ms, "
                    f"growth {found['mib']:.0f} MiB",
                    flush=True,
                )
    for what, figure in asyncio.run(measure_queues()).items():
        print(f"{what:40} {figure:10,.0f}")


if __name__ == "__main__":
    main()
