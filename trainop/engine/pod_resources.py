"""The resources that a pod requests, as the scheduler computes them.

Source: kubernetes `staging/src/k8s.io/component-helpers/resource/helpers.go`, `PodRequests`; for what the API server
adds to a pod that has resources of its own, `pkg/apis/core/v1/defaults.go`, `defaultPodRequests`. Templates are not
validated: what is no quantity counts as nothing, because the API server will refuse the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from trainop.engine.fields import as_list, as_object
from trainop.runtime.lowlevel import Quantity, exact_amount, read_quantity

Resources: TypeAlias = dict[str, Quantity]
"""Resource name -> amount."""

_OF_PODS = frozenset({"cpu", "memory"})
_HUGE_PAGES = "hugepages-"
"""The resources that a pod may have itself (`IsSupportedPodLevelResource`)."""


def pod_requests(spec: Mapping[str, Any]) -> Resources:
    """The requests of a pod: those of its own or else of its containers, plus its overhead."""
    total = _container_requests(spec)
    _replace(total, spec.get("resources"))
    _add(total, read_resources(spec.get("overhead")))
    return total


def _replace(total: Resources, own: object) -> None:
    """Puts the requests of the pod itself in place of those of its containers. A limit of the pod is its request of
    what no container requests."""
    if not isinstance(own, dict):
        return
    limits, requests = read_resources(own.get("limits")), read_resources(own.get("requests"))
    given = {name: each for name, each in limits.items() if name not in total} | requests
    total.update((name, each) for name, each in given.items() if name in _OF_PODS or name.startswith(_HUGE_PAGES))


def _container_requests(spec: Mapping[str, Any]) -> Resources:
    """The requests of the containers and sidecars or, where that is more, of the init containers."""
    total: Resources = {}
    for container in as_list(spec.get("containers")):
        _add(total, container_requests(container))
    sidecars: Resources = {}
    initial: Resources = {}
    # Each container costs the resources that it names itself: the sum of the sidecars before it counts in `initial`
    # already, and walking it for every container would be quadratic in the size of the template.
    for container in as_list(spec.get("initContainers")):
        needed = container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, needed)
            _add(sidecars, needed)
            needed = {name: sidecars[name] for name in needed}
        else:  # it runs beside the sidecars before it
            _add(needed, {name: sidecars[name] for name in needed if name in sidecars})
        _raise(initial, needed)
    _raise(total, initial)
    return total


def container_requests(container: Mapping[str, Any]) -> Resources:
    """The requests of a container; for a resource without a request its limit, as the API server defaults it."""
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return {}
    return read_resources(resources.get("limits")) | read_resources(resources.get("requests"))


def add_multiple(total: Resources, more: Mapping[str, Quantity], count: int) -> None:
    """Adds `count` times `more` to `total`."""
    _add(total, {name: Quantity(each.amount * count, each.format) for name, each in more.items()})


def same_resources(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two maps of quantities have the same names and amounts, however these are written."""
    return one.keys() == other.keys() and all(_same_amount(one[name], other[name]) for name in one)


def _same_amount(one: object, other: object) -> bool:
    try:
        return exact_amount(one) == exact_amount(other)
    except ValueError:
        return one == other


def read_resources(raw: object) -> Resources:
    """What is no quantity is left out."""
    found: Resources = {}
    for name, value in as_object(raw).items():
        if isinstance(value, str | int | float):
            try:
                found[name] = read_quantity(value)
            except ValueError:
                continue
    return found


def _add(total: Resources, more: Mapping[str, Quantity]) -> None:
    """Adds in place. A sum has the format of its first amount that is not 0."""
    for name, each in more.items():
        before = total.get(name, Quantity(Fraction(0), each.format))
        total[name] = Quantity(before.amount + each.amount, before.format if before.amount else each.format)


def _raise(total: Resources, least: Mapping[str, Quantity]) -> None:
    """Raises each amount in place to at least that of `least`."""
    for name, each in least.items():
        if name not in total or total[name].amount < each.amount:
            total[name] = each
