"""What jobs as large as etcd can hold cost the operator, each shape of `shapes.py` in a process of its own.

python -m e2e.bench.hostile [SHAPE ...]        about a minute; exit code 1 if a limit is missed

A row is the job's way through the operator, without an API server: its JSON is decoded, planned, and as many
bodies are made as a job has in flight. Nothing of this can be interrupted, so the longest of these
steps is what the event loop stands still for. It is told in processor time, since others may use the machine too.
Memory is the peak beyond a process that has the operator loaded.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from e2e.bench.shapes import SHAPES
from trainop.engine.actions import CreatePod, CreateService
from trainop.engine.framework import Framework
from trainop.engine.plan import plan
from trainop.engine.seen import Snapshot
from trainop.operator import FRAMEWORKS
from trainop.runtime.objects.metadata import decode_unstructured

T = TypeVar("T")

MOST_STALL = 100.0
"""Milliseconds."""
MOST_MEMORY = 64.0
"""MiB."""
REPETITIONS = 3
"""The best counts."""
BODIES = 8
"""As many as a job has in flight."""


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it answers, and the milliseconds of processor time that it took."""
    began = time.thread_time()
    answer = work()
    return answer, (time.thread_time() - began) * 1000


def measure(kind: str, raw: bytes) -> dict[str, Any]:
    """One row, in a fresh process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 80)  # as the operator
    rest = peak_kib()
    rows = [go_through(FRAMEWORKS[kind], raw) for _ in range(REPETITIONS)]
    peak = peak_kib()
    best = {key: min(row[key] for row in rows) for key in rows[0]}
    return {"job": len(raw) / 2**20, **best, "memory": (peak - rest) / 1024}


def peak_kib() -> int:
    """The most that was ever resident; `ru_maxrss` would begin with that of the parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def go_through(framework: Framework, raw: bytes) -> dict[str, float]:
    job, decoding = timed(lambda: decode_unstructured(raw))
    made, planning = timed(lambda: plan(framework, Snapshot(job, (), (), datetime.now(UTC))))
    actions = [action for action in made.actions if isinstance(action, CreatePod | CreateService)]
    bodies = [timed(action.encode) for action in actions[:BODIES]]
    return {
        "decode": decoding,
        "plan": planning,
        "body": max((took for _, took in bodies), default=0.0),
        "size": max((len(body) for body, _ in bodies), default=0) / 2**20,
        "bodies": len(actions),
    }


def in_a_process(name: str) -> dict[str, Any]:
    job = SHAPES[name].readable_job()
    job["metadata"]["uid"] = "u"
    done = subprocess.run(
        [sys.executable, "-m", "e2e.bench.hostile", "--one", job["kind"]],
        input=json.dumps(job, separators=(",", ":")).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--one"]:
        print(json.dumps(measure(arguments[1], sys.stdin.buffer.read())))
        return 0
    print(f"limits: {MOST_STALL:.0f} ms for each step, {MOST_MEMORY:.0f} MiB\n")
    print("| job | MiB | decode, ms | plan, ms | bodies of a plan | largest, MiB | one body, ms | memory, MiB | |")
    print("|---|---|---|---|---|---|---|---|---|")
    missed = 0
    for name in arguments or SHAPES:
        row = in_a_process(name)
        met = max(row["decode"], row["plan"], row["body"]) <= MOST_STALL and row["memory"] <= MOST_MEMORY
        missed += not met
        figures = "{job:.2f} | {decode:.1f} | {plan:.1f} | {bodies} | {size:.2f} | {body:.1f} | {memory:.0f}".format(
            **row
        )
        print(f"| {name} | {figures} | {'' if met else 'missed'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
