"""The broken jobs that run on the embedded cluster: `trainop why` names the cause that the head of each file states."""

from __future__ import annotations

import pytest
import yaml

from tests.broken import FOLDER, PAGE, Broken, broken, read, shown
from tests.commands.conftest import Shell
from trainop.programs.schemes import all_kinds

LOCAL = broken("local")


def test_every_kind_has_a_broken_job():
    files = [read(path) for path in FOLDER.glob("*.yaml")]
    assert len(files) >= 20
    made = {(each.job["kind"], each.job["apiVersion"]) for each in files}
    assert {(kind.resource.kind, kind.resource.api_version) for kind in all_kinds()} <= made | {
        ("DIJob", "diengine.opendilab.org/v2alpha1")
    }


def test_the_page_shows_each_of_them_under_a_symptom():
    page = PAGE.read_text(encoding="utf-8")
    for path in FOLDER.glob("*.yaml"):
        example = read(path)
        assert shown(example).strip(), example.name
        before = page[: page.index(f"<!-- {example.name} -->")]
        assert f"examples/broken/{example.name}.yaml" in before.rpartition("\n## ")[2]


@pytest.fixture(scope="module")
def created(shell: Shell) -> Shell:
    """All of them at once, in one cluster."""
    for example in LOCAL:
        assert not example.others
        shell.create(yaml.safe_dump(example.job))
    return shell


@pytest.mark.parametrize("example", LOCAL, ids=lambda each: each.name)
def test_the_cause_is_named(created: Shell, example: Broken):
    def ask() -> tuple[str, int]:
        done = created.run("why", example.target)
        return done.stdout, done.returncode

    example.explain(ask)
