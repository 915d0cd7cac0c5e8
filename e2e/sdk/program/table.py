"""The table of calls, and what each of its rows gets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubeflow.training import TrainingClient
from kubernetes.client import CoreV1Api

from e2e.sdk.program.old import KindClient
from e2e.sdk.program.shapes import SHAPES, Shape, make_job

PATIENCE = 120.0
POLL = 0.2


@dataclass(frozen=True)
class Scene:
    """One kind of job on one cluster."""

    kind: str
    kubeconfig: str
    namespace: str
    image: str
    torch_image: str
    old: bool
    """The SDK has methods by kind, such as `create_tfjob` (1.7)."""

    @property
    def shape(self) -> Shape:
        return SHAPES[self.kind]

    @property
    def client(self) -> Any:
        """The client as users create it, for this kind and namespace."""
        if self.old:
            return KindClient(TrainingClient(config_file=self.kubeconfig), self.kind, self.namespace)
        return TrainingClient(config_file=self.kubeconfig, namespace=self.namespace, job_kind=self.kind)

    @property
    def core(self) -> CoreV1Api:
        return self.client.core_api

    def name(self, purpose: str) -> str:
        """The name of a job. Pods of all kinds have the same label with it, so that it contains the kind."""
        return f"{purpose}-{self.kind.lower()}"

    def job(self, purpose: str, **replaced: Any) -> Any:
        return make_job(self.kind, purpose, self.name(purpose), self.namespace, self.image, **replaced)

    def wait(self, purpose: str, *conditions: str, seconds: float = PATIENCE, **more: Any) -> Any:
        """Calls `wait_for_job_conditions` with a short interval."""
        expected = {"expected_conditions": set(conditions)} if conditions else {}
        return self.client.wait_for_job_conditions(
            self.name(purpose), wait_timeout=seconds, polling_interval=POLL, **expected, **more
        )

    def condition(self, name: str) -> dict[str, bool]:
        """The answers of the five `is_job_*` calls."""
        states = ("created", "running", "restarting", "succeeded", "failed")
        return {state: getattr(self.client, f"is_job_{state}")(name) for state in states}


@dataclass(frozen=True)
class Row:
    """A call, what its documentation promises, and the check of that."""

    call: str
    promise: str
    check: Callable[[Scene], None]
    since: tuple[int, ...]
    kinds: tuple[str, ...]
    webhook: bool
    """Needs a cluster that calls the operator's webhook."""


TABLE: list[Row] = []


def expect(
    call: str,
    promise: str,
    *,
    since: tuple[int, ...] = (1, 7),
    kinds: tuple[str, ...] = tuple(SHAPES),
    webhook: bool = False,
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Adds a row. It runs for each of its kinds, after the rows above have run for all kinds."""

    def add(check: Callable[[Scene], None]) -> Callable[[Scene], None]:
        TABLE.append(Row(call, promise, check, since, kinds, webhook))
        return check

    return add


def same(found: object, expected: object) -> None:
    """Raises `AssertionError` if two values differ."""
    if found != expected:
        raise AssertionError(f"expected {expected!r}, got {found!r}")


def raised(error: type[BaseException], call: Callable[[], object], text: str = "") -> str:
    """The message of the exception that the call must raise."""
    try:
        found = call()
    except error as caught:
        if text not in str(caught):
            raise AssertionError(f"{error.__name__} without {text!r}: {caught}") from caught
        return str(caught)
    raise AssertionError(f"no {error.__name__}, but {found!r}")


def eventually(holds: Callable[[], object], what: str) -> None:
    """Polls until `holds` returns something true. Raises `AssertionError` with `what` after `PATIENCE` seconds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"after {PATIENCE:.0f} s still not: {what}")
        time.sleep(POLL)
