"""What the page shows of one job, as JSON. Pure, and independent of where the job was read.

Texts of the cluster are printable and of bounded length, and so is each list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainop.engine.fields import as_list, as_object
from trainop.explain.story import Step, Story
from trainop.explain.why import Diagnosis, Evidence, PodFacts
from trainop.explain.why.evidence import EventFacts
from trainop.explain.why.reported import describe_reported, read_reported
from trainop.runtime import Json
from trainop.runtime.lowlevel import cut, printable, timestamp

MAX_STEPS = 120
"""Of the timeline: the first third and the last ones."""
MAX_REPLICAS = 1_000
MAX_EVENTS = 200
MAX_CONDITIONS = 40
MAX_TEXT = 2_000
"""Bytes of one text."""


def clean(text: object) -> str:
    """A text of the cluster for the page."""
    return cut(printable(str(text)), MAX_TEXT)


def job_view(evidence: Evidence, story: Story) -> Json:
    """One job: state, timeline, replicas, conditions, events and the last report of its progress."""
    reported = read_reported(evidence.status)
    pods = sorted(evidence.pods, key=lambda each: (each.role, -1 if each.index is None else each.index, each.name))
    return {
        "kind": evidence.kind,
        "namespace": clean(evidence.metadata.get("namespace", "")),
        "name": clean(evidence.name),
        "state": clean(story.state),
        "created": clean(evidence.metadata.get("creationTimestamp", "")),
        "seconds": round(story.seconds),
        "steps": [_step(each) for each in _some(story.steps)],
        "hidden": max(0, len(story.steps) - MAX_STEPS),
        "replicas": [_replica(each) for each in pods[:MAX_REPLICAS]],
        "left": max(0, len(pods) - MAX_REPLICAS),
        "first": clean(first_failure(evidence)),
        "conditions": [_condition(each) for each in as_list(evidence.status.get("conditions"))[:MAX_CONDITIONS]],
        "events": [_event(each) for each in evidence.events[-MAX_EVENTS:]],
        "progress": clean(describe_reported(reported)) if reported is not None else "",
        "percent": reported.percent if reported is not None else None,
        "notes": [clean(each) for each in (*story.notes, *(f"could not read {text}" for text in story.unread))],
    }


def _some(steps: tuple[Step, ...]) -> Iterable[Step]:
    if len(steps) <= MAX_STEPS:
        return steps
    return (*steps[: MAX_STEPS // 3], *steps[MAX_STEPS // 3 - MAX_STEPS :])


def _step(step: Step) -> Json:
    return {
        "at": timestamp(step.at) if step.at else "",
        "until": timestamp(step.until) if step.until else "",
        "name": step.name,
        "text": clean(step.text),
        "seconds": step.seconds,
        "open": step.open,
        "inner": step.of_replicas,
        "evidence": [clean(each) for each in step.evidence],
    }


def _replica(pod: PodFacts) -> Json:
    main = [each for each in pod.containers if not each.init]
    exits = [each.exit_code for each in main if each.exit_code]
    waits = next((f"{each.reason}: {each.message}" for each in pod.containers if each.state == "waiting"), "")
    return {
        "name": clean(pod.label),
        "pod": clean(pod.name),
        "phase": "Terminating" if pod.deadline is not None else clean(pod.phase),
        "ready": pod.ready,
        "restarts": sum(each.restarts for each in main),
        "node": clean(pod.node),
        "exit": exits[0] if exits else None,
        "detail": clean(": ".join(filter(None, (pod.reason, pod.message))) or waits.strip(": ")),
    }


def first_failure(evidence: Evidence) -> str:
    """The label of the replica that failed first: that which the operator blames, else that which ended first."""
    blamed = as_object(evidence.status.get("lastFailure")).get("pod")
    ends = [
        (pod.name != blamed, each.finished.timestamp() if each.finished else float("inf"), pod.label)
        for pod in evidence.pods
        for each in pod.containers
        if each.exit_code
    ]
    return min(ends, default=(True, 0.0, ""))[2]


def _condition(condition: Json) -> Json:
    names = {"type": "type", "status": "status", "reason": "reason", "message": "message", "at": "lastTransitionTime"}
    return {name: clean(as_object(condition).get(field) or "") for name, field in names.items()}


def _event(event: EventFacts) -> Json:
    return {
        "at": timestamp(event.at) if event.at else "",
        "type": clean(event.type),
        "reason": clean(event.reason),
        "about": clean(f"{event.kind} {event.name}"),
        "message": clean(event.message),
        "count": event.count,
    }


def why_view(found: Diagnosis) -> Json:
    """The explanation of `trainop why`."""
    return {
        "state": found.state.value,
        "causes": [
            {"text": clean(each.text), "next": clean(each.next), "evidence": [clean(line) for line in each.evidence]}
            for each in found.causes[:12]
        ],
        "unread": [clean(each) for each in found.unread],
    }


MAX_POINTS, MAX_SERIES = 300, 12


class Plots:
    """The reports of one job as series over time. With more than `MAX_POINTS`, every second one is left out."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._last: Json | None = None

    def take(self, status: Json, at: float) -> None:
        """The status of the job at a time, in seconds since 1970. One that reports nothing new is left out."""
        reported = read_reported(status)
        if reported is None:
            return
        values = dict(_numbers(reported.metrics))
        if reported.percent is not None:
            values = {"progress %": float(reported.percent), **values}
        if not values or (self._last == values):
            return
        self._last = values
        self._samples.append((at, values))
        if len(self._samples) > MAX_POINTS:
            self._samples = [*self._samples[0:-1:2], self._samples[-1]]

    def as_json(self) -> list[Json]:
        names = list(dict.fromkeys(name for _, values in self._samples for name in values))[:MAX_SERIES]
        return [
            {"name": clean(name), "points": [[at, values[name]] for at, values in self._samples if name in values]}
            for name in names
        ]


def _numbers(metrics: dict[str, str]) -> Iterator[tuple[str, float]]:
    for name, text in metrics.items():
        try:
            number = float(text)
        except ValueError:
            continue
        if abs(number) < 1e300:  # false for NaN, too
            yield name[:80], number
