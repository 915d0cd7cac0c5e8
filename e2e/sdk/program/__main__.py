"""Runs the table on a cluster: `python -m e2e.sdk.program --kubeconfig FILE`.

Each line is a result, a kind, a call, its promise and what was wrong, separated by tabs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from importlib.metadata import version

from e2e.sdk.program import change, create, finetune, pods, state
from e2e.sdk.program.shapes import known_shapes
from e2e.sdk.program.table import TABLE, Row, Scene

ORDER = (create, pods, state, finetune, change)
"""Later modules continue with the jobs of earlier ones."""


def rows(release: tuple[int, ...], *, webhook: bool) -> list[Row]:
    """The rows for a version and a cluster, in the order of the modules."""
    modules = [module.__name__ for module in ORDER]
    chosen = [row for row in TABLE if row.since <= release and (webhook or not row.webhook)]
    return sorted(chosen, key=lambda row: modules.index(row.check.__module__))


def run(row: Row, scene: Scene) -> bool:
    """Whether the call does what it promises; prints the result."""
    begun, wrong = time.monotonic(), ""
    try:
        row.check(scene)
    except Exception as error:  # noqa: BLE001 - whatever a call raises is a result
        where = traceback.extract_tb(error.__traceback__)[1:][-1:]
        wrong = " ".join(f"{type(error).__name__}: {error}".split())[:2000]
        wrong += "".join(f" ({line.name}:{line.lineno})" for line in where)
    seconds = f"{time.monotonic() - begun:.1f} s"
    print("FAILED" if wrong else "ok", scene.kind, row.call, row.promise, seconds, wrong, sep="\t", flush=True)
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.sdk.program", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--image", default="python", help="an image with python and bash")
    parser.add_argument("--torch-image", default="", help="an image that also has torchrun; default: the same")
    parser.add_argument("--webhook", action="store_true", help="the cluster calls the operator's webhook")
    parser.add_argument("--kind", action="append", help="a selection")
    chosen = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)  # 1.7 logs each call
    installed = version("kubeflow-training")
    release = tuple(int(part) for part in installed.split(".")[:3])
    kinds = [kind for kind in known_shapes() if not chosen.kind or kind in chosen.kind]
    print(f"kubeflow-training {installed} knows {', '.join(kinds)}", flush=True)
    results = []
    for row in rows(release, webhook=chosen.webhook):
        for kind in kinds:
            if kind in row.kinds:
                scene = Scene(
                    kind,
                    chosen.kubeconfig,
                    chosen.namespace,
                    chosen.image,
                    chosen.torch_image or chosen.image,
                    old=release < (1, 8),
                )
                results.append(run(row, scene))
    print(f"{sum(results)} of {len(results)} calls did what they promise", flush=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
