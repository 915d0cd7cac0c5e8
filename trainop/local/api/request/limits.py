"""Limits of the size and depth of request bodies.

YAML aliases and the `copy` operation of a JSON patch share parts of a value, so that a few hundred bytes can expand to
more than the memory of any machine. `check_value` measures the expanded size without walking shared parts twice.
"""

from __future__ import annotations

from typing import Any

from trainop.local.api.status_errors import StatusError, bad_request

BODY_LIMIT = 3 * 1024 * 1024
"""Bytes of a request body, as in kube-apiserver (twice the `--max-request-bytes` of etcd)."""
DEPTH_LIMIT = 500
"""Levels of nesting. kube-apiserver allows 10,000, but the recursion limit of Python is 1,000."""
_NODE_LIMIT = BODY_LIMIT
"""Nodes of an expanded value; each takes at least one byte, so more could not fit into a request."""


def check_body(body: bytes) -> None:
    """Raise 413 if the body exceeds the limit."""
    if len(body) > BODY_LIMIT:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}", {})


def nested_too_deeply() -> StatusError:
    """The 400 for a value beyond `DEPTH_LIMIT`."""
    return bad_request(f"the object is nested too deeply: this server takes {DEPTH_LIMIT} levels")


def check_value(value: Any) -> None:
    """Raise 400 if the value is nested too deeply, contains itself, or expands to more nodes than the limit."""
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
            raise nested_too_deeply()
        if size > _NODE_LIMIT:
            raise bad_request("the object is too large: its expanded size exceeds that of a request")
        measured[id(item)] = (size, depth)


def may_exceed_depth(body: bytes) -> bool:
    """Whether the body has more opening brackets than the depth limit; a cheap check before `check_value`."""
    return body.count(b"{") + body.count(b"[") > DEPTH_LIMIT
