"""Every example runs as its first lines say, all in one cluster, and the replicas of each train together."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainop.engine.extensions import SERVICE_MODE
from trainop.programs.schemes import FRAMEWORKS

ROOT = Path(__file__).parent.parent
OTHERS = {"mpi", "dijob", "broken"}
"""MPIJobs need programs that not every machine has: `make test-mpi` runs theirs. DIJobs: tests/run/test_dijob.py.
Broken jobs: tests/commands/test_broken.py."""
WITH_FRAMEWORK = {
    "jax/data_parallel.yaml",
    "mxnet/kvstore.yaml",
    "paddle/data_parallel.yaml",
    "pytorch/ddp.yaml",
    "pytorch/elastic.yaml",
    "survive/mpi.yaml",
    "survive/trainer.yaml",
    "tensorflow/multiworker.yaml",
    "tensorflow/parameter_servers.yaml",
}
"""These need frameworks, which are not installed here: `make e2e` runs them, those of survive also
`make test-survive`."""
FILES = sorted(
    path
    for path in (ROOT / "examples").glob("*/*.yaml")
    if path.parent.name not in OTHERS and f"{path.parent.name}/{path.name}" not in WITH_FRAMEWORK
)
LINE = re.compile(r"(?P<job>[-\w]+)/(?P<replica>[-\w]+)\s+(?P<text>.*)")
LOSS = re.compile(r"step +(\d+) loss ([\d.]+)")
SERVERS = {"PS", "Scheduler", "Server"}
"""Roles that process no data and therefore print no loss."""


@dataclass
class Run:
    """The output of `trainop run`: the whole text, and the lines of each replica of each job."""

    code: int
    text: str
    replicas: dict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def __post_init__(self) -> None:
        for line in self.text.splitlines():
            if found := LINE.fullmatch(line):
                self.replicas[found["job"]][found["replica"]].append(found["text"])


@pytest.fixture(scope="module", params=[None, "job"], ids=["as it is", "service mode job"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run all examples at once, as they are or with another service mode."""
    files = [str(path.relative_to(ROOT)) for path in FILES]
    if request.param is not None:
        files = [str(with_mode(path, request.param, tmp_path_factory.mktemp("examples"))) for path in FILES]
    command = [sys.executable, "-m", "trainop", "run", *files]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    return Run(done.returncode, done.stdout)


def with_mode(path: Path, mode: str, folder: Path) -> Path:
    """A copy of an example in which all jobs have the service mode."""
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for document in documents:
        document["metadata"].setdefault("annotations", {})[SERVICE_MODE] = mode
    copy = folder / path.name
    copy.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return copy


def jobs(path: Path) -> Iterator[dict[str, Any]]:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document["kind"] in FRAMEWORKS:
            yield document


def trainers(job: dict[str, Any]) -> Iterator[str]:
    roles = job["spec"][FRAMEWORKS[job["kind"]].replica_specs]
    for role, spec in roles.items():
        if role not in SERVERS:
            yield from (f"{role.lower()}-{index}" for index in range(spec["replicas"]))


def test_every_kind_has_an_example():
    assert {job["kind"] for path in FILES for job in jobs(path)} == set(FRAMEWORKS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_example_trains(run: Run, path: Path):
    for job in jobs(path):
        name = job["metadata"]["name"]
        assert re.search(rf"^{name} Succeeded", run.text, re.MULTILINE), run.text
        ends = set()
        for trainer in trainers(job):
            lines = run.replicas[name][trainer]
            losses = [float(found[2]) for line in lines if (found := LOSS.fullmatch(line))]
            assert losses == sorted(losses, reverse=True), (trainer, lines)
            assert losses[-1] < losses[0] / 10, (trainer, lines)
            ends |= {line for line in lines if line.startswith("done: weights ")}
        assert len(ends) == 1, ends


def test_the_killed_rank_goes_on_from_its_checkpoint(run: Run):
    lines = run.replicas["recover"]["worker-1"]
    assert "step 25: exiting with 137, as if killed" in lines
    assert "resuming from checkpoint at step 25" in lines
    assert lines[-1].startswith("done: weights ")


def test_all_jobs_succeeded(run: Run):
    assert run.code == 0, run.text
