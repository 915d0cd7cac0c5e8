"""Reports permissions that the API server denies, so that an administrator sees which right a role lacks.

Callers retry a denied request with their usual back-off. This module only makes it visible: one log line per permission
and interval, a counter, and an optional callback, such as for an event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

import structlog

from trainop.runtime.clock import Clock
from trainop.runtime.errors import ApiError
from trainop.runtime.log_throttle import LogThrottle
from trainop.runtime.objects.metadata import Resource

REPORT_INTERVAL = 300.0
"""Seconds between two reports of the same permission."""

MAX_PERMISSIONS = 200
"""Limit of different permissions that are reported; a role has fewer."""

_DENIED = re.compile(
    r'cannot (?P<verb>[a-z]+) resource "(?P<resource>[^"]{1,200})" in API group "(?P<group>[^"]{0,200})"'
    r'(?: in the namespace "(?P<namespace>[^"]{1,100})")?'
)
"""The message of a denied permission (apiserver `pkg/endpoints/handlers/responsewriters/errors.go`). Refusals of
admission plugins, which have status 403 as well, do not match."""

log = structlog.get_logger(__name__)


class Permission(NamedTuple):
    """A verb on a resource, as in the rules of a Role. `resource` includes the subresource: `pods/exec`."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        """`create services`, `patch pytorchjobs.kubeflow.org/status`."""
        resource, slash, subresource = self.resource.partition("/")
        return f"{self.verb} {resource}{'.' + self.group if self.group else ''}{slash}{subresource}"


class PermissionMetrics(Protocol):
    """Counts denied requests."""

    def permission_denied(self, verb: str, group: str, resource: str) -> None: ...


class MissingPermissions:
    """Pass `report` to all clients of a process as `denied`."""

    def __init__(self, clock: Clock, metrics: PermissionMetrics, optional: Collection[Resource] = ()) -> None:
        """Of the `optional` resources, a permission to list or watch is not missed."""
        self._metrics = metrics
        self._optional = {(verb, each.group, each.plural) for each in optional for verb in ("list", "watch")}
        self._throttle = LogThrottle(clock, REPORT_INTERVAL)
        self._reported: set[Permission] = set()
        self.announce: Callable[[Permission, str], None] | None = None
        """Called with the permission and the server's message whenever the permission is logged."""

    def report(self, error: ApiError) -> None:
        """Reports a response with status 403, if it denies a permission."""
        denied = _DENIED.search(error.message)
        if denied is None:
            return
        permission = Permission(denied["verb"], denied["group"], denied["resource"])
        if (permission.verb, permission.group, permission.resource) in self._optional:
            return
        if permission not in self._reported and len(self._reported) >= MAX_PERMISSIONS:
            return
        self._reported.add(permission)
        self._metrics.permission_denied(*permission)
        repeats = self._throttle.count(str(permission))
        if repeats is None:
            return
        namespace = denied["namespace"] or ""
        log.error(
            "permission denied", permission=str(permission), namespace=namespace, repeats=repeats, error=str(error)
        )
        if self.announce is not None:
            self.announce(permission, str(error))
