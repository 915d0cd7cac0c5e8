"""Bodies of requests: how they are validated, the options of deletions, and whether a patch may be sent twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trainop.runtime.objects.metadata import Json

OWN_FIELDS = {"fieldValidation": "Ignore"}
"""The query for bodies into which no field of a user flows. By default the API server compares each body with the
schema, for warnings about unknown fields."""

_encode = msgspec.json.Encoder().encode


def delete_options(options: Mapping[str, Any]) -> bytes:
    """The body of a deletion; empty if no option is given."""
    given = {name: value for name, value in options.items() if value is not None}
    return _encode({"apiVersion": "v1", "kind": "DeleteOptions"} | given) if given else b""


def names_version(patch: Json | Sequence[Json]) -> bool:
    """Whether the patch demands a resourceVersion, so that it cannot be applied twice."""
    if isinstance(patch, dict):
        return bool((patch.get("metadata") or {}).get("resourceVersion"))
    return any(op.get("op") == "test" and op.get("path") == "/metadata/resourceVersion" for op in patch)
