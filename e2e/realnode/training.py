"""What the tests of all kinds demand of the logs of a job that has trained."""

from __future__ import annotations

import re

from e2e.realnode.proof import Proof


def logs_of(proof: Proof, job: str = "") -> dict[str, str]:
    """The log of each pod by name."""
    names = [pod["metadata"]["name"] for pod in proof.pods(job or None)]
    return {name: proof.logs(name) for name in names}


def check_ranks(proof: Proof, logs: dict[str, str], said: str, world: int) -> None:
    """`said` matches one line per rank: its number, how many there are, and the framework's name with its version."""
    found = [match for log in logs.values() for match in re.findall(said, log)]
    ranks = sorted((int(rank), int(count)) for rank, count, _ in found)
    assert ranks == [(rank, world) for rank in range(world)], (found, logs)
    for _, _, framework in found:
        proof.framework(framework)
    proof.expect(f"ranks 0 to {world - 1}, each once", f"{[rank for rank, _ in ranks]} of {world}")


def check_loss(proof: Proof, log: str) -> None:
    losses = [float(loss) for loss in re.findall(r"step +\d+ loss ([\d.]+)", log)]
    assert losses, log
    assert losses[-1] < losses[0] / 10, losses
    proof.expect("the loss falls to less than a tenth", f"from {losses[0]:.3g} to {losses[-1]:.3g}")


def check_weights(proof: Proof, logs: dict[str, str], count: int) -> None:
    """So many ranks have ended, with the same weights."""
    ends = [end for log in logs.values() for end in re.findall(r"done: weights (\w+)", log)]
    assert len(ends) == count, logs
    assert len(set(ends)) == 1, ends
    proof.expect(f"{count} ranks with equal weights", f"weights {ends[0]} on {len(ends)}")


def check_no_restarts(proof: Proof, job: str = "") -> None:
    statuses = [one for pod in proof.pods(job or None) for one in pod["status"].get("containerStatuses") or ()]
    assert statuses
    assert all(one["restartCount"] == 0 for one in statuses), statuses
