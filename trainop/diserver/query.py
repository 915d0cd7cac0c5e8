"""The parameters of GET, and which answer they ask for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trainop.diserver.replies import Refusal
from trainop.runtime.lowlevel import cut

PARAMETERS = ("namespace", "coordinator", "aggregator", "name")


class Query(NamedTuple):
    """The parameters; empty: absent. At most one of the last three is set, in the order of precedence."""

    namespace: str = ""
    name: str = ""
    coordinator: str = ""
    aggregator: str = ""


def read_query(pairs: Iterable[tuple[str, str]]) -> Query:
    """Raises `Refusal`. Keys are matched regardless of case, and the first value of a key counts."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key.lower() not in PARAMETERS:
            raise Refusal(400, f"request param {cut(key, 128)} is not supported")
        found.setdefault(key.lower(), value)
    if any(found.values()) and not found.get("namespace"):
        raise Refusal(400, "request param namespace is required")
    for filter_ in ("name", "coordinator", "aggregator"):
        if found.get(filter_):
            return Query(found["namespace"])._replace(**{filter_: found[filter_]})
    return Query(found.get("namespace", ""))
