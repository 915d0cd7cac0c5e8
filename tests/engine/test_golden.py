"""Golden tests of a complete job and all its children: `golden/<kind>-job.yaml` and `golden/<kind>-children.yaml`.

`python -m tests.engine.test_golden` rewrites the children; review the difference before committing it.
"""

import io
from pathlib import Path

import pytest
import yaml

from tests.engine.builders import manifest_of, see
from trainop.engine.actions import CreatePod, CreateService
from trainop.engine.framework import Framework
from trainop.engine.plan import plan
from trainop.operator import FRAMEWORKS
from trainop.runtime.objects.metadata import Json

GOLDEN = Path(__file__).with_name("golden")


def children(framework: Framework) -> list[Json]:
    job = yaml.safe_load((GOLDEN / f"{framework.kind.lower()}-job.yaml").read_text())
    return [manifest_of(a) for a in plan(framework, see(job)).actions if isinstance(a, CreatePod | CreateService)]


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_children_of_a_whole_job(kind: str):
    expected = list(yaml.safe_load_all((GOLDEN / f"{kind.lower()}-children.yaml").read_text()))
    made = children(FRAMEWORKS[kind])
    assert [(child["kind"], child["metadata"]["name"]) for child in made] == [
        (child["kind"], child["metadata"]["name"]) for child in expected
    ]
    for child, golden in zip(made, expected, strict=True):
        assert child == golden


class Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def write(framework: Framework) -> None:
    text = io.StringIO()
    text.write(f"# What the job of {framework.kind.lower()}-job.yaml gets in its first pass, in order.\n")
    yaml.dump_all(children(framework), text, Dumper=Dumper, sort_keys=False, width=120)
    (GOLDEN / f"{framework.kind.lower()}-children.yaml").write_text(text.getvalue())


if __name__ == "__main__":
    for each in FRAMEWORKS.values():
        write(each)
