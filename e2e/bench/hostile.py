"""The cost of maximum-size jobs for the operator; each shape of `shapes.py` runs in a new process.

python -m e2e.bench.hostile [SHAPE ...]        about a minute; exit code 1 if a limit is exceeded

Each row measures decoding, planning, and the encoding of as many bodies as a job has requests in flight, without an API
server. None of these steps can be interrupted, so the longest one is how long the event loop is blocked. Times are CPU
times, because other processes may use the machine. Memory is the peak beyond a process that has loaded the operator.
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
from tests.engine.builders import replica_created
from trainop.engine.framework import Framework
from trainop.engine.plan import plan
from trainop.engine.seen import Snapshot
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import decode_unstructured

T = TypeVar("T")

MAX_STALL = 100.0
"""Milliseconds."""
MAX_MEMORY = 64.0
"""MiB."""
REPETITIONS = 3
"""The minimum is reported."""
BODIES = 8
"""The number of requests that a job has in flight."""


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of `work`, and its CPU time in milliseconds."""
    began = time.thread_time()
    result = work()
    return result, (time.thread_time() - began) * 1000


def measure(kind: str, raw: bytes) -> dict[str, Any]:
    """Measures one row; call it in a new process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 80)  # as the operator
    baseline = peak_kib()
    rows = [measure_once(FRAMEWORKS[kind], raw) for _ in range(REPETITIONS)]
    peak = peak_kib()
    best = {key: min(row[key] for row in rows) for key in rows[0]}
    return {"job": len(raw) / 2**20, **best, "memory": (peak - baseline) / 1024}


def peak_kib() -> int:
    """Peak resident memory. Not `ru_maxrss`, which starts at the value of the parent process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def measure_once(framework: Framework, raw: bytes) -> dict[str, float]:
    job, decoding = timed(lambda: decode_unstructured(raw))
    planned, planning = timed(lambda: plan(framework, Snapshot(job, (), (), datetime.now(UTC))))
    actions = [action for action in planned.actions if replica_created(action)]
    bodies = [timed(action.encode) for action in actions[:BODIES] if action.encode]
    return {
        "decode": decoding,
        "plan": planning,
        "body": max((milliseconds for _, milliseconds in bodies), default=0.0),
        "size": max((len(body) for body, _ in bodies), default=0) / 2**20,
        "bodies": len(actions),
    }


def run_in_process(name: str) -> dict[str, Any]:
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
    print(f"limits: {MAX_STALL:.0f} ms per step, {MAX_MEMORY:.0f} MiB\n")
    print("| job | MiB | decode, ms | plan, ms | bodies of a plan | largest, MiB | one body, ms | memory, MiB | |")
    print("|---|---|---|---|---|---|---|---|---|")
    missed = 0
    for name in arguments or SHAPES:
        row = run_in_process(name)
        met = max(row["decode"], row["plan"], row["body"]) <= MAX_STALL and row["memory"] <= MAX_MEMORY
        missed += not met
        figures = "{job:.2f} | {decode:.1f} | {plan:.1f} | {bodies} | {size:.2f} | {body:.1f} | {memory:.0f}".format(
            **row
        )
        print(f"| {name} | {figures} | {'' if met else 'exceeded'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
