"""One test's view of the cluster: a namespace of its own, and the record that the report is made from."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.places import ClusterError
from e2e.realnode.cluster import NAMESPACE, PATIENCE, RealCluster
from e2e.realnode.images import ROOT
from e2e.realnode.recorder import Recorder

Json = dict[str, Any]
LOSS = re.compile(r"\bstep[ =:]+(\d+)[ ,;]+loss[ =:]+([-+.\deE]+)")
FIRST = ("master-0", "chief-0", "launcher", "coordinator", "worker-0")
"""The pod whose log is searched for the loss: the first of these suffixes that has printed any."""
TAIL = 40


class Proof:
    """What a test does on the cluster, and what it has seen. Every failure message has the state of the namespace."""

    def __init__(self, cluster: RealCluster, name: str) -> None:
        self.cluster = cluster
        self.namespace = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-")
        self.frameworks: list[str] = []
        self.remarks: list[str] = []
        self.expectations: list[tuple[str, str]] = []
        self.kinds: list[str] = []
        self.applied: list[tuple[str, str]] = []
        self.waited: list[tuple[float, str]] = []
        self.losses: list[tuple[int, float]] = []
        self.begun = time.time()
        self._recorder: Recorder | None = None

    def open(self) -> None:
        self.cluster.kubectl("create", "namespace", self.namespace)
        self.begun = time.time()
        self._recorder = Recorder(self.cluster.node, self.namespace)
        self._recorder.start()

    # acting

    def apply(
        self, source: str | Path, image: str = "base", replace: Mapping[str, str] | None = None, *, keep: bool = False
    ) -> list[Json]:
        """Applies a file (a path below the project) or the text of manifests, and returns the objects as applied.

        Every container and init container gets `image`, one of `IMAGES`, unless `keep` is set. `replace` replaces
        parts of the text before. Objects must not have a namespace of their own.
        """
        text = str(source) if "\n" in str(source) else (ROOT / source).read_text(encoding="utf-8")
        for old, new in (replace or {}).items():
            if old not in text:
                raise ValueError(f"{old!r} is not in the manifest")
            text = text.replace(old, new)
        objects = [one for one in yaml.safe_load_all(text) if one]
        if not keep:
            reference = self.cluster.load(image)
            for one in objects:
                replace_images(one, reference)
        self.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(objects))
        for one in objects:
            self.applied.append((one["kind"], one["metadata"]["name"]))
            if one["kind"].endswith("Job") and one["kind"] not in self.kinds:
                self.kinds.append(one["kind"])
        return objects

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """kubectl in the namespace of this test."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    def exec(self, pod: str, *command: str) -> str:
        """The output of a command in a pod. Raises `ClusterError` if its exit code is not 0."""
        return self.kubectl("exec", pod, "--", *command)

    # seeing

    def get(self, *what: str) -> Json:
        return self.cluster.get(*what, namespace=self.namespace)

    def job(self, resource: str) -> Json:
        """A job, such as `pytorchjob/train`. For MPIJobs, name the version: `mpijobs.v1.kubeflow.org/train`."""
        return self.get(resource)

    def condition(self, resource: str, condition: str) -> Json | None:
        """The condition of an object if it is True."""
        found = self.get(resource).get("status", {}).get("conditions") or ()
        return next((one for one in found if one["type"] == condition and one["status"] == "True"), None)

    def pods(self, job: str | None = None) -> list[Json]:
        """The pods of the namespace, or of one job by name, sorted by name."""
        chosen = [f"--selector=training.kubeflow.org/job-name={job}"] if job else []
        return sorted(self.get("pods", *chosen)["items"], key=lambda pod: str(pod["metadata"]["name"]))

    def pod(self, name: str) -> Json:
        return self.get("pod", name)

    def logs(self, pod: str, *, previous: bool = False) -> str:
        """The log of a pod, of all containers, or that of the previous run of its container."""
        return self.kubectl("logs", pod, *(["--previous"] if previous else ["--all-containers"]))

    def events(self, reason: str = "") -> list[Json]:
        """The events of the namespace in order of time, or only those with this reason."""
        found = sorted(self.get("events")["items"], key=event_time)
        return [one for one in found if not reason or one["reason"] == reason]

    def timelines(self) -> list[Json]:
        """Of each pod that the namespace has or had: its name, its phases with their times, its restarts."""
        return self._recorder.timelines() if self._recorder else []

    # waiting

    def wait_until(self, holds: Callable[[], object], what: str, seconds: float = PATIENCE, every: float = 0.5) -> Any:
        """Polls until `holds` returns something true, and returns that. Errors of kubectl count as false.

        Raises `AssertionError` with the state of the namespace after `seconds`.
        """
        end, last = time.monotonic() + seconds, ""
        while True:
            try:
                if found := holds():
                    self.waited.append((time.time() - self.begun, what))
                    return found
            except ClusterError as error:
                last = f" ({error})"
            if time.monotonic() > end:
                raise AssertionError(f"after {seconds:.0f} s still not: {what}{last}\n{self.describe()}")
            time.sleep(every)

    def wait_for(self, resource: str, condition: str, seconds: float = PATIENCE) -> Json:
        """Waits until a condition is True, and returns the object. Fails at once if the job has Failed or Succeeded
        instead."""
        opposite = {"Succeeded": "Failed", "Failed": "Succeeded"}.get(condition)

        def holds() -> bool:
            if opposite and (other := self.condition(resource, opposite)):
                raise AssertionError(f"{resource} is {opposite}: {other.get('message')}\n{self.describe()}")
            return self.condition(resource, condition) is not None

        self.wait_until(holds, f"{resource} is {condition}", seconds)
        return self.get(resource)

    def wait_for_log(self, pod: str, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        """The first match of a regular expression in the log of a pod, which is waited for."""
        found: re.Match[str] = self.wait_until(
            lambda: re.search(pattern, self.logs(pod), re.MULTILINE), f"log of {pod}: {pattern}", seconds
        )
        return found

    # recording

    def framework(self, text: str) -> None:
        """The framework and its exact version, as the report shows them."""
        if text not in self.frameworks:
            self.frameworks.append(text)

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def expect(self, text: str, outcome: str) -> None:
        """What the specification wants, and what was seen. The report shows both."""
        self.expectations.append((text, outcome))

    def loss(self, values: Sequence[tuple[int, float]]) -> None:
        """The loss by step. If it is not given, lines such as `step 10 loss 0.25` in the pods' logs are read."""
        self.losses = list(values)

    def describe(self) -> str:
        """The state of the namespace for a failure message: objects, events, ends of logs, the operator's log."""
        parts = [self._try("get", "all,events", "--output=wide")]
        parts += [self._try("describe", f"{kind.lower()}/{name}") for kind, name in self.applied if kind in self.kinds]
        for name, log in self._logs().items():
            parts.append(f"--- {name}\n{log}")
        parts.append("--- operator\n" + _tail(self._try("logs", "deployment/training-operator", namespace=NAMESPACE)))
        return "\n".join(parts)

    def close(self, title: str, outcome: str, failure: str) -> Json:
        """The record of the test; deletes the namespace."""
        seconds = time.time() - self.begun
        logs = self._logs()
        try:
            record = {
                "title": title,
                "kinds": self.kinds,
                "frameworks": self.frameworks,
                "result": outcome,
                "failure": failure[:8000],
                "begun": self.begun,
                "seconds": seconds,
                "jobs": self._jobs(),
                "events": self._events(),
                "pods": self.timelines(),
                "waited": self.waited,
                "loss": self.losses or read_losses(self._logs(None)),
                "remarks": self.remarks,
                "expectations": self.expectations,
                "logs": logs,
            }
        finally:
            self.stop()
            self._delete()
        return record

    def stop(self) -> None:
        """Stops recording."""
        if self._recorder:
            self._recorder.stop()

    def _delete(self) -> None:
        """Returns when the pods are gone. What else is in the namespace goes later, and disturbs nothing."""
        self._try("delete", "namespace", self.namespace, "--wait=false", namespace="default")
        # a namespace that ends gets no new pods
        self._try("delete", "pods", "--all", "--grace-period=1", f"--timeout={PATIENCE:.0f}s")

    def _try(self, *arguments: str, namespace: str = "") -> str:
        try:
            return self.cluster.kubectl(f"--namespace={namespace or self.namespace}", *arguments)
        except ClusterError as error:
            return str(error)

    def _logs(self, lines: int | None = TAIL) -> dict[str, str]:
        found = {}
        for pod in self._items("pods"):
            name = pod["metadata"]["name"]
            found[name] = self._try("logs", name, "--all-containers", *([f"--tail={lines}"] if lines else []))
        return found

    def _items(self, resource: str) -> list[Json]:
        try:
            items: list[Json] = self.get(resource)["items"]
        except ClusterError:
            return []
        return items

    def _jobs(self) -> list[Json]:
        found = []
        for kind, name in self.applied:
            if kind not in self.kinds:
                continue
            try:
                conditions = self.get(f"{kind.lower()}/{name}").get("status", {}).get("conditions") or []
            except ClusterError:
                conditions = []
            found.append({"kind": kind, "name": name, "conditions": conditions})
        return found

    def _events(self) -> list[Json]:
        keys = ("reason", "message", "type", "count")
        events = sorted(self._items("events"), key=event_time)
        return [
            {
                **{key: one.get(key) for key in keys},
                "object": one["involvedObject"].get("name"),
                "time": event_time(one),
            }
            for one in events
        ]


def replace_images(value: Any, reference: str) -> None:
    """Gives all containers of all pod templates in an object this image, which is never pulled."""
    if isinstance(value, list):
        for one in value:
            replace_images(one, reference)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in {"containers", "initContainers"} and isinstance(inner, list):
                for container in inner:
                    container |= {"image": reference, "imagePullPolicy": "IfNotPresent"}
            else:
                replace_images(inner, reference)


def read_losses(logs: Mapping[str, str]) -> list[tuple[int, float]]:
    """The loss by step in the log of the first pod that has printed it: of the master, else of another."""

    def order(name: str) -> tuple[int, str]:
        return next((place for place, suffix in enumerate(FIRST) if suffix in name), len(FIRST)), name

    for name in sorted(logs, key=order):
        if found := [(int(step), float(loss)) for step, loss in LOSS.findall(logs[name])]:
            return found
    return []


def event_time(event: Json) -> str:
    """When an event was seen last, as RFC 3339."""
    found = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return str(found)


def _tail(text: str, lines: int = TAIL) -> str:
    return "\n".join(text.splitlines()[-lines:])
