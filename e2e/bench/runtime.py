"""Compares the runtime's informer and work queue with simple implementations.

python -m e2e.bench.runtime        half a minute; exit code 1 if a limit is exceeded

10,000 pods of 5 KiB arrive as a paginated or streamed list. Measured are the seconds until all are stored, indexed and
passed to a handler, the longest stall of the event loop, and the growth of memory; with `Informer` and the operator's
decoder, and with dictionaries from `json`. Each variant runs in a new process. The work queue is compared with a set
and an `asyncio.Queue` in CPU time. The best of three runs is reported, because other processes may use the machine.
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
from trainop.controllers.observe import child_indices
from trainop.engine.children import TRAINING_CHILDREN, decode_pod
from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.client import Client
from trainop.runtime.client.paging import PAGE_SIZE
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.clock import SystemClock
from trainop.runtime.controller.workqueue import WorkQueue
from trainop.runtime.objects.metadata import PODS, Key

PODS_HELD = 10_000
POD_BYTES = 5 * 1024
ADDS = 100_000
REPETITIONS = 3
SECONDS, STALL, GROWTH = "synced after, s", "longest stall, ms", "growth, MiB"
LIMITS = {SECONDS: 5.0, STALL: 100.0, GROWTH: 60.0}
MIN_ADDS = 100_000
STREAMED = "streamed"
CHUNK = 64 * 1024
END_OF_LIST = (
    b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"10000",'
    b'"annotations":{"k8s.io/initial-events-end":"true"}}}}\n'
)
NEW, PLAIN = "adds/s, new keys", "adds/s, new keys, plain"


def make_pods(first: int) -> list[dict[str, Any]]:
    """One page of pods, each padded to 5 KiB with `managedFields`."""
    bodies = [body for resource, body in objects(-(-PAGE_SIZE // 8), 7) if resource is PODS][:PAGE_SIZE]
    pods = []
    for number, body in enumerate(bodies, first):
        metadata = body["metadata"] | {"name": f"pod-{number}", "uid": str(uuid.UUID(int=number))}
        metadata |= {"resourceVersion": str(number + 1), "creationTimestamp": "2026-01-01T00:00:00Z"}
        pod = body | {"metadata": metadata, "status": {"phase": "Running", "podIP": "10.1.1.1"}}
        padding = POD_BYTES - len(msgspec.json.encode(pod)) - 80
        metadata["managedFields"] = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:x": "y" * padding}}]
        pods.append(pod)
    return pods


def make_page(first: int, pods: list[dict[str, Any]]) -> bytes:
    """A page of a PodList as sent by an API server."""
    last = first + PAGE_SIZE >= PODS_HELD
    meta = {"resourceVersion": str(PODS_HELD), "continue": "" if last else str(first + PAGE_SIZE)}
    return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": pods})


def make_lines(pods: list[dict[str, Any]]) -> bytes:
    """The pods as events of a streamed list."""
    return b"".join(msgspec.json.encode({"type": "ADDED", "object": pod}) + b"\n" for pod in pods)


class SilentWatch:
    """A watch stream without events."""

    status = 200
    headers: dict[str, str] = {}  # noqa: RUF012  # never written

    async def chunks(self) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def close(self) -> None:
        """No resources to release."""


class StreamedList(SilentWatch):
    """A streamed list in chunks of socket reads, followed by a watch without events."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    async def chunks(self) -> AsyncIterator[bytes]:
        for path in self.paths:
            lines = path.read_bytes()
            for start in range(0, len(lines), CHUNK):
                yield lines[start : start + CHUNK]
        yield END_OF_LIST
        await asyncio.Event().wait()


class ListTransport:
    """A transport that serves one prepared list, paginated or `streamed`."""

    def __init__(self, folder: Path, *, streamed: bool) -> None:
        self.pages = {path.stem: path for path in folder.glob("*.json")}
        self.lines = sorted(folder.glob("*.lines"))
        self.streamed = streamed

    async def send(self, request: Request) -> Response:
        return Response(200, {}, self.pages[request.query.get("continue", "0")].read_bytes())

    async def open(self, request: Request) -> Any:
        if "sendInitialEvents" not in request.query:
            return SilentWatch()
        if self.streamed:
            return StreamedList(self.lines)
        return RejectedWatch(
            b'{"kind":"Status","code":422,"reason":"Invalid","message":"sendInitialEvents is forbidden"}'
        )

    async def close(self) -> None:
        """No resources to release."""


class RejectedWatch(SilentWatch):
    status = 422

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.body


class CountingHandler:
    """An informer handler that counts additions."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, obj: object, initial: bool) -> None:
        self.count += 1

    def update(self, old: object, new: object) -> None: ...
    def delete(self, obj: object, key: Key, final_state_unknown: bool) -> None: ...


async def with_informer(transport: ListTransport) -> object:
    indices = child_indices(TRAINING_CHILDREN)
    informer, handler = Informer(Client(transport), PODS, decode_pod, indices=indices), CountingHandler()
    informer.add_handler(handler)
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    assert len(informer.store) == handler.count == PODS_HELD
    running.cancel()
    return informer.store


async def with_dictionaries(transport: ListTransport) -> object:
    """The same store, index and handler with plain dictionaries, as in an operator that decodes lists with `json`."""
    store: dict[Key, Any] = {}
    by_owner: dict[str, set[Key]] = {}
    handler = CountingHandler()
    token = "0"
    while token:
        response = await transport.send(Request("GET", PODS.path(), {"continue": token}))
        page = json.loads(response.body)
        for item in page["items"]:
            metadata = item["metadata"]
            key = Key(metadata["namespace"], metadata["name"])
            store[key] = item
            for owner in metadata.get("ownerReferences", ()):
                by_owner.setdefault(owner["uid"], set()).add(key)
            handler.add(item, True)
        token = page["metadata"]["continue"]
        await asyncio.sleep(0)
    assert len(store) == handler.count == PODS_HELD
    return store, by_owner


VARIANTS: dict[str, Callable[[ListTransport], Awaitable[object]]] = {
    "informer": with_informer,
    STREAMED: with_informer,
    "dictionaries": with_dictionaries,
}


async def measure_list(variant: str, folder: Path) -> dict[str, float]:
    stalls = [0.0]

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0)
            stalls.append(time.monotonic() - before)

    transport = ListTransport(folder, streamed=variant == STREAMED)
    gc.collect()
    before = resident_mib()
    ticking = asyncio.create_task(tick())
    start = time.monotonic()
    held = await VARIANTS[variant](transport)
    seconds = time.monotonic() - start
    ticking.cancel()
    gc.collect()
    grown = resident_mib() - before
    del held
    return {SECONDS: seconds, STALL: 1000 * max(stalls), GROWTH: grown}


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


async def measure_queues() -> dict[str, float]:
    """Operations per second: adds of new keys, adds of known keys, and pairs of `get` and `done`."""
    keys = [Key("ns", f"job-{number}") for number in range(ADDS)]
    queue: WorkQueue[Key] = WorkQueue("bench", SystemClock())
    figures = {NEW: rate(queue.add, keys), "adds/s, known keys": rate(queue.add, keys)}
    start = time.thread_time()
    for _ in keys:
        queue.done(await queue.get())
    figures["get and done/s"] = ADDS / (time.thread_time() - start)
    plain: asyncio.Queue[Key] = asyncio.Queue()
    known: set[Key] = set()

    def add(key: Key) -> None:
        if key not in known:
            known.add(key)
            plain.put_nowait(key)

    figures[PLAIN] = rate(add, keys)
    return figures


def rate(add: Callable[[Key], None], keys: Sequence[Key]) -> float:
    start = time.thread_time()
    for key in keys:
        add(key)
    return len(keys) / (time.thread_time() - start)


def run_in_process(variant: str, folder: str) -> dict[str, float]:
    command = [sys.executable, "-m", "e2e.bench.runtime", variant, folder]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def measure_lists() -> dict[str, dict[str, float]]:
    """The best figures of each variant; the variants alternate."""
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for first in range(0, PODS_HELD, PAGE_SIZE):
            pods = make_pods(first)
            (Path(folder) / f"{first}.json").write_bytes(make_page(first, pods))
            (Path(folder) / f"{first:05}.lines").write_bytes(make_lines(pods))
        for variant in [*VARIANTS] * REPETITIONS:
            found[variant].append(run_in_process(variant, folder))
    return {variant: {what: min(run[what] for run in runs) for what in LIMITS} for variant, runs in found.items()}


def report(lists: dict[str, dict[str, float]], queues: dict[str, float]) -> bool:
    """Prints figures, ratios and limits; returns whether all limits are met."""
    print(f"{PODS_HELD} pods of {POD_BYTES} bytes, pages of {PAGE_SIZE} or a streamed list, the best of {REPETITIONS}")
    print(f"{'':20}{'dictionaries':>14}{'informer':>12}{'ratio':>8}{'streamed':>12}{'ratio':>8}{'limit':>8}")
    met = []
    for what, limit in LIMITS.items():
        plain = lists["dictionaries"][what]
        line = f"{what:20}{plain:14.2f}"
        for variant in ("informer", STREAMED):
            figure = lists[variant][what]
            met.append(figure < limit)
            line += f"{figure:12.2f}{figure / plain:8.2f}"
        print(f"{line}{limit:8g}{'' if all(met[-2:]) else '  missed'}")
    met.append(queues[NEW] >= MIN_ADDS)
    print(f"\n{ADDS} keys, work queue beside a set and an asyncio.Queue")
    for what, figure in queues.items():
        ratio = f"{figure / queues[PLAIN]:8.2f} of plain" if what == NEW else ""
        print(f"{what:40}{figure:12,.0f}{ratio}")
    print(f"at least {MIN_ADDS:,} adds/s of new keys: {'yes' if met[-1] else 'missed'}")
    return all(met)


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if len(sys.argv) == 3:
        print(json.dumps(asyncio.run(measure_list(sys.argv[1], Path(sys.argv[2])))))
        return
    lists = measure_lists()
    runs = [asyncio.run(measure_queues()) for _ in range(REPETITIONS)]
    queues = {what: max(run[what] for run in runs) for what in runs[0]}
    if not report(lists, queues):
        sys.exit("a limit is exceeded")


if __name__ == "__main__":
    main()
