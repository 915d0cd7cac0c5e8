"""`docs/`: the pages of the kinds are what would be written, and what they and other pages name is there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.docs.__main__ import FOLDER, pages
from e2e.docs.rules import probe
from e2e.docs.samples import plain, plain_job
from tests.engine.builders import manifest_of
from trainop.engine.actions import CreatePod, CreateService
from trainop.engine.plan import plan
from trainop.engine.readings import READINGS, Effect
from trainop.engine.schema.crd import crd
from trainop.engine.seen import Snapshot
from trainop.operator import FRAMEWORKS
from trainop.runtime.objects.metadata import Unstructured

ROOT = Path(__file__).parent.parent


def test_the_pages_of_the_kinds_are_up_to_date():
    written = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written == pages(), "run `make docs`"


@pytest.mark.parametrize(
    ("kind", "roles", "spec", "told"),
    [
        ("TFJob", ("Chief", "PS", "Worker"), {}, ("`Chief`", "all of `Chief`")),
        ("TFJob", ("Worker",), {}, ("`Worker`", "the first of `Worker`")),
        ("TFJob", ("Worker",), {"successPolicy": "AllWorkers"}, ("`Worker`", "all of `Worker`")),
        ("PyTorchJob", ("Master", "Worker"), {}, ("`Master`", "`Master`")),
        ("PyTorchJob", ("Worker",), {"elasticPolicy": {}}, ("`Worker`", "any of `Worker`")),
        ("JAXJob", ("Worker",), {}, ("`Worker`", "all of `Worker`")),
    ],
)
def test_what_decides_is_found_by_trying(kind: str, roles: tuple[str, ...], spec: dict[str, object], told: object):
    framework = FRAMEWORKS[kind]
    assert probe(framework, plain_job(framework, roles, **spec)) == told


def test_the_file_of_a_new_kind_is_all_that_it_takes():
    """The program in `docs/new-kind.md`, as it stands there."""
    text = (ROOT / "docs" / "new-kind.md").read_text(encoding="utf-8")
    program = text.split("```python\n")[1].split("```")[0]
    scope: dict[str, Any] = {}
    exec(compile(program, "new-kind.md", "exec"), scope)  # noqa: S102  our own page, which is what is tested
    framework = scope["MY"]
    now = datetime(2025, 6, 1, tzinfo=UTC)
    raw = Unstructured(plain(framework, {"Worker": 2}))
    made = plan(framework, Snapshot(raw, (), (), now)).actions
    pods = [manifest_of(action) for action in made if isinstance(action, CreatePod)]
    assert [pod["spec"]["containers"][0]["env"] for pod in pods] == [
        [{"name": "MY_PEERS", "value": "j-worker-0:7777,j-worker-1:7777"}, {"name": "MY_RANK", "value": str(index)}]
        for index in range(2)
    ]
    assert len([action for action in made if isinstance(action, CreateService)]) == 2
    assert crd(framework)["metadata"]["name"] == "myjobs.kubeflow.org"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_files_that_a_page_names_are_there(page: Path):
    """Paths in backticks, such as `trainop/operator.py`; `<kind>` stands for any."""
    named = re.findall(
        r"`((?:trainop|tests|docs|examples|manifests|e2e)/[\w./<>*-]+)`", page.read_text(encoding="utf-8")
    )
    for name in named:
        pattern = re.sub(r"<\w+>", "*", name).rstrip("/")
        assert list(ROOT.glob(pattern)), f"{page.name} names {name}"


def test_the_page_of_wrong_fields_has_the_table_that_is_followed():
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    rows = [
        tuple(cell.strip() for cell in line.split("|")[1:4]) for line in text.splitlines() if line.startswith("| `")
    ]
    assert rows == [
        (
            f"`{row.path}`" + (f" ({', '.join(row.types)})" if row.types else ""),
            row.taken_as,
            "no" if row.effect is Effect.NONE else row.effect.value,
        )
        for row in READINGS
    ]
