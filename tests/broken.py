"""The broken jobs of `examples/broken`: what the heads of the files say, and what `docs/troubleshooting.md` shows.

The head is the only source of what `trainop why` has to say. With TRAINOP_RECORD=1 the tests write what it said into
the page instead of comparing it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.patience import PATIENCE

RECORDING = bool(os.environ.get("TRAINOP_RECORD"))
SETTLED = 20.0
"""Seconds after which the output is recorded."""

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "broken"
PAGE = ROOT / "docs" / "troubleshooting.md"
HEAD = re.compile(
    r"# Symptom: (?P<symptom>.+)\n# Cause: (?P<cause>.+)\n# Next: (?P<next>.+)\n# Where: (?P<where>local|cluster)\n"
    r"# State: (?P<state>\w+)\n# Why: (?P<why>.+)\n"
)
EXIT_CODES = {"Running": 0, "Succeeded": 0, "Failed": 1, "Waiting": 3, "Troubled": 4}
"""From the help of `trainop why`."""
VARYING = (
    (r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME"),
    (r"\b\d+ (s|min|h)\b", "DURATION"),
    (r"\bns\d+\b", "default"),
    (r"-launcher-\w{5}\b", "-launcher-XXXXX"),
    (r"(Worker|worker-) ?\d", r"\1 N"),
    (r"rank \d", "rank N"),
    (r"; \d+ other replicas? failed after it", ""),
)
"""What differs from run to run: times, names that the API server makes, which of several replicas came first, and how
many followed."""


@dataclass(frozen=True)
class Broken:
    """One example."""

    name: str
    """Of the file, without its ending."""
    job: dict[str, Any]
    others: list[dict[str, Any]]
    """Further objects, which are created first."""
    where: str
    state: str
    why: re.Pattern[str]
    """Found in what `trainop why` says, as one line."""

    @property
    def target(self) -> str:
        return f"{self.job['kind'].lower()}/{self.job['metadata']['name']}"

    def explain(self, ask: Callable[[], tuple[str, int]]) -> None:
        """Repeats `trainop why` until it says what the page shows: there is less to say while pods and events arrive.
        `ask` returns its output and exit code."""
        begin = time.monotonic()
        while True:
            said, code = ask()
            passed = time.monotonic() - begin
            if RECORDING:
                if passed > SETTLED and self.why.search(" ".join(said.split())):
                    record(self, said)
                    break
            elif normal(said) == normal(shown(self)):
                break
            if passed > PATIENCE:
                break
            time.sleep(0.2)
        self.check(said, code)

    def check(self, said: str, code: int) -> None:
        """Compares the output of `trainop why` with the head and with the page."""
        line = " ".join(said.split())
        assert re.search(rf"^{self.job['kind']} \S+ in namespace \S+: {self.state}\b", said), said
        assert self.why.search(line), f"{self.why.pattern}\n{said}"
        assert code == EXIT_CODES[self.state], said
        assert normal(said) == normal(shown(self)), "TRAINOP_RECORD=1 writes it into the page"


def read(path: Path) -> Broken:
    """Raises `AssertionError` if the head of the file is not as it should be."""
    text = path.read_text(encoding="utf-8")
    head = HEAD.match(text)
    assert head, f"{path.name} has not the head that {HEAD.pattern} asks for"
    documents = list(yaml.safe_load_all(text))
    (job,) = (each for each in documents if "Job" in each["kind"])
    others = [each for each in documents if each is not job]
    return Broken(path.stem, job, others, head["where"], head["state"], re.compile(head["why"]))


def broken(where: str) -> list[Broken]:
    """The examples that run there."""
    return [each for path in sorted(FOLDER.glob("*.yaml")) if (each := read(path)).where == where]


def block_of(example: Broken) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {re.escape(example.name)} -->\n```console\n\$ trainop why \S+\n)(.*?)(```\n)", re.DOTALL)


def shown(example: Broken) -> str:
    """What the page shows of the example."""
    found = block_of(example).search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE.name} shows nothing of {example.name}"
    return found[2]


def record(example: Broken, said: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    said = re.sub(r"\bns\d+\b", "default", said)
    PAGE.write_text(block_of(example).sub(lambda found: found[1] + said + found[3], text), encoding="utf-8")


def normal(said: str) -> str:
    for pattern, instead in VARYING:
        said = re.sub(pattern, instead, said)
    return said.strip()
