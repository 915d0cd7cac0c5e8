"""How many collectors and learners a job declares to its queue: the annotation `di-replicas`.

The spec of a DIJob has no numbers: the coordinator asks for replicas while it runs. A queue has to know them before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainop.engine.fields import Fields
from trainop.kinds.dijob.names import REPLICAS, Role
from trainop.runtime.lowlevel import cut

DECLARABLE = (Role.COLLECTOR, Role.LEARNER)
MOST = 10_000
"""Replicas of one role."""

_FORM = re.compile(r"(collector|learner)=([0-9]{1,5})")


def read_declared(fields: Fields, annotations: Mapping[str, str]) -> dict[Role, int]:
    """Role -> number, without zeros. Adds an error if the annotation is wrong, and then declares nothing."""
    text = annotations.get(REPLICAS)
    if text is None:
        return {}
    found = [_FORM.fullmatch(part.strip()) for part in text.split(",", len(DECLARABLE))]
    declared = {Role(each[1]): int(each[2]) for each in found if each is not None}
    if len(declared) < len(found) or max(declared.values()) > MOST:
        detail = f"must be such as collector=4,learner=1, each at most once and at most {MOST}"
        fields.invalid(f"metadata.annotations[{REPLICAS}]", cut(text, 100), detail)
        return {}
    return {role: number for role, number in declared.items() if number}
