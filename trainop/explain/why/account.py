"""The words for the account of a job's time (`status.account`), for every program that shows it."""

from __future__ import annotations

from trainop.engine.phases import ACCOUNT, ATTEMPT, Account, read_account
from trainop.explain.why.evidence import Evidence
from trainop.explain.why.words import span


def find_account(seen: Evidence) -> Account | None:
    """The account in the status; None if there is none."""
    return read_account(seen.status.get(ACCOUNT))


def describe_account(account: Account) -> str:
    """`queued 5 s, starting 10 s, training 2 h, restarting 30 s; 10 min of the training were lost since the last
    reported checkpoint; goodput 91 %`. Parts that took no time are left out."""
    named = [f"{name} {span(seconds)}" for name, seconds in account.parts.items() if seconds and name != "lost"]
    parts = [", ".join(named) or "less than a second"]
    if account.lost:
        parts.append(_describe_loss(account))
    if account.goodput is not None:
        parts.append(f"goodput {int(100 * account.goodput)} %")
    return "; ".join(parts)


def _describe_loss(account: Account) -> str:
    lost = span(account.lost)
    if account.lost_since == ATTEMPT:
        return f"at most {lost} of the training were lost, as not every run reported a checkpoint"
    return f"{lost} of the training were lost since the last reported checkpoint"
