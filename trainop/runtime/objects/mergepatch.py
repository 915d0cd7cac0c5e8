"""JSON merge patches (RFC 7386)."""

from __future__ import annotations

from trainop.runtime.objects.metadata import Json


def merge_patch_between(old: Json, new: Json) -> Json:
    """The merge patch that turns `old` into `new`; lists are replaced as a whole."""
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := merge_patch_between(before, value):
                patch[name] = inner
        elif before != value or name not in old:
            patch[name] = value
    return patch
