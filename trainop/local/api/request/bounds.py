"""How large and how deep what a client sends may become.

A value is a tree in what it means, but not always in memory: aliases of YAML and the `copy` of a JSON patch let parts
be shared, so that some hundred bytes can stand for more than any machine holds. It is measured as the tree that it
means, without walking shared parts twice.
"""

from __future__ import annotations

from typing import Any

from trainop.local.api.status_errors import StatusError, bad_request

BODY_LIMIT = 3 * 1024 * 1024
"""Bytes of a request, as of the API server (`--max-request-bytes` of etcd, doubled)."""
DEPTH_LIMIT = 500
"""Levels. The API server takes 10,000; Python's own stack ends at 1,000."""
_NODE_LIMIT = BODY_LIMIT
"""A value of one byte at least for each node would be larger than a request may be."""


def check_body(body: bytes) -> None:
    """Refuse what is too large to be looked at."""
    if len(body) > BODY_LIMIT:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}", {})


def too_deep() -> StatusError:
    return bad_request(f"the object is nested too deeply: this server takes {DEPTH_LIMIT} levels")


def check_value(value: Any) -> None:
    """Refuse what is nested too deeply, contains itself, or means more than a request may hold."""
    measured: dict[int, tuple[int, int]] = {}
    open_: set[int] = set()
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        item, entered = stack.pop()
        if not isinstance(item, dict | list) or id(item) in measured:
            continue
        parts = item.values() if isinstance(item, dict) else item
        if not entered:
            if id(item) in open_:
                raise bad_request("the object contains itself")
            open_.add(id(item))
            stack.append((item, True))
            stack.extend((part, False) for part in parts if isinstance(part, dict | list))
            continue
        open_.discard(id(item))
        inner = [measured[id(part)] for part in parts if isinstance(part, dict | list)]
        size = len(item) + 1 + sum(nodes for nodes, _ in inner)
        depth = 1 + max((levels for _, levels in inner), default=0)
        if depth > DEPTH_LIMIT:
            raise too_deep()
        if size > _NODE_LIMIT:
            raise bad_request("the object means more than a request may hold: its parts are copied too often")
        measured[id(item)] = (size, depth)


def may_be_deep(body: bytes) -> bool:
    """Whether the text opens more lists and maps than may stand in each other."""
    return body.count(b"{") + body.count(b"[") > DEPTH_LIMIT
