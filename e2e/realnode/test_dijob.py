"""DIJob: the example changes its own size through the di-server of the cluster."""

from __future__ import annotations

import re

import pytest

from e2e.realnode.proof import Proof


@pytest.mark.images("base")
def test_growing_and_shrinking(proof: Proof) -> None:
    """A coordinator asks di-server for collectors and a learner; one collector crashes and is replaced"""
    proof.apply("examples/dijob/cartpole.yaml", image="base")

    def ended() -> str:
        phase = str(proof.job("dijob/cartpole").get("status", {}).get("phase"))
        return phase if phase in {"Succeeded", "Failed"} else ""

    assert proof.wait_until(ended, "the job has ended") == "Succeeded", proof.describe()
    log = proof.logs("cartpole-coordinator")
    collectors = [int(count) for count in re.findall(r"^step +\d+ collectors (\d+)", log, re.MULTILINE)]
    assert (collectors[0], max(collectors), collectors[-1]) == (1, 4, 1), log
    assert len(re.findall("^replaced .+ by .+", log, re.MULTILINE)) == 1, log
    assert "done: 1 collector, 1 learner" in log
    returns = [float(found) for found in re.findall(r"return ([\d.]+)", log)]
    assert returns[-1] > returns[0], returns
    proof.framework("none (an actor-learner program in Python)")
    proof.expect("1, 4 and again 1 collector, one replaced after a crash", f"collectors by step {collectors}")
    proof.expect("the program learns", f"return from {returns[0]} to {returns[-1]}")
