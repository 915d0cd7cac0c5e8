"""Small texts that all rules share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from trainop.explain.why.evidence import PodFacts
from trainop.runtime.lowlevel import join_some

MAX_SHOWN = 3


def name_pods(pods: Sequence[PodFacts], total: int) -> str:
    """`worker-0, worker-1 and 10 more of 64 pods`, or `all 4 pods`."""
    if len(pods) == total and total > 1:
        return f"all {total} pods"
    names = join_some((each.label for each in pods[:MAX_SHOWN]), min(len(pods), MAX_SHOWN), limit=300)
    more = f" and {len(pods) - MAX_SHOWN} more" if len(pods) > MAX_SHOWN else ""
    return f"{names}{more} of {total} pods" if more else names


def verb(pods: Sequence[object], one: str, many: str) -> str:
    return one if len(pods) == 1 else many


def digest(messages: Iterable[str]) -> tuple[str, ...]:
    """Each message once, with the number of times, the most frequent first."""
    counted = Counter(filter(None, messages))
    return tuple(f"{count} x {text}" if count > 1 else text for text, count in counted.most_common(MAX_SHOWN))


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 5 min`, `2 d`."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 2 * 86400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h" + (f" {minutes} min" if minutes else "")
    return f"{whole // 86400} d"
