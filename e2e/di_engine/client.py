"""Talks to di-server through DI-engine's `OperatorServer`, and prints what it answered; runs in an environment of its
own: python client.py HOST PORT NAMESPACE COORDINATOR

Only the modules of the client are imported: the packages around them import torch and gym.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

PACKAGES = ("ding", "ding.interaction", "ding.worker", "ding.worker.coordinator")


def load_client() -> Any:
    """The class `OperatorServer`, with the packages above it replaced by empty ones."""
    spec = importlib.util.find_spec("ding")
    assert spec, "DI-engine is not installed"
    assert spec.origin
    root = Path(spec.origin).parent.parent
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    # what `ding.interaction` exports and the client uses is in its package `base`
    return importlib.import_module("ding.worker.coordinator.operator_server").OperatorServer


def names(urls: list[str]) -> list[str]:
    """The names of pods, as `CommCoordinator` derives them from `host:port`."""
    return [url.split(":")[0].rpartition(".")[0] for url in urls]


def successful(answer: tuple[bool, int, str, Any]) -> Any:
    success, code, message, data = answer
    assert (success, code) == (True, 0), answer
    print(message, data, flush=True)
    return data


def main() -> None:
    host, port, namespace, coordinator = sys.argv[1:]
    client = load_client()
    server = client(host, int(port), namespace=namespace, name=coordinator)
    server.set_worker_type("coordinator")

    made = successful(server.post_replicas({"collectors": {"replicas": 2}, "learners": {"gpus": "0", "replicas": 1}}))
    assert [len(made[role]) for role in ("collectors", "learners")] == [2, 1]
    seen = successful(server.get_replicas())
    assert {role: sorted(seen[role]) for role in ("collectors", "learners")} == {
        role: sorted(made[role]) for role in ("collectors", "learners")
    }

    replaced = successful(server.post_replicas_failed(collectors=names(made["collectors"])[:1], learners=[]))
    assert len(replaced["collectors"]) == 1
    assert not set(replaced["collectors"]) & set(made["collectors"])
    seen = successful(server.get_replicas())
    assert sorted(seen["collectors"]) == sorted([*made["collectors"][1:], *replaced["collectors"]])

    grouped = successful(server.post_replicas({"learners": {"gpus": 2, "replicas": 1}}))
    (aggregator,) = names(grouped["learners"])
    below = client(host, int(port), namespace=namespace, name=aggregator)
    below.set_worker_type("aggregator")
    assert len(successful(below.get_replicas())["learners"]) == 2

    successful(server.delete_replicas(n_collectors=2, n_learners=1))
    assert successful(server.get_replicas())["collectors"] == []
    stranger = client(host, int(port), namespace=namespace, name="nobody")
    stranger.set_worker_type("coordinator")
    try:
        stranger.get_replicas()
    except Exception as error:  # noqa: BLE001  # the client raises `RequestException`, of a package of its environment
        print(f"an unknown coordinator: {type(error).__name__}", flush=True)
    else:
        raise AssertionError("an unknown coordinator is accepted")


if __name__ == "__main__":
    main()
