"""Golden tests of a complete job and all its children: `golden/<kind>-job.yaml` and `golden/<kind>-children.yaml`, and
`golden/<kind>-service-mode-job.yaml` with service mode `job`.

`python -m tests.engine.test_golden` rewrites the children; review the difference before committing it.
"""

import io
from pathlib import Path

import pytest
import yaml

from tests.engine.builders import manifest_of, replica_created, see
from trainop.engine.framework import Framework
from trainop.engine.plan import plan
from trainop.engine.seen import Options
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json

GOLDEN = Path(__file__).with_name("golden")


FILES = {"replica": "children", "job": "service-mode-job"}
"""Service mode -> name of the file with the children."""


def children(framework: Framework, mode: str) -> list[Json]:
    job = yaml.safe_load((GOLDEN / f"{framework.kind.lower()}-job.yaml").read_text())
    made = plan(framework, see(job, options=Options(service_mode=mode)))
    return [manifest_of(a) for a in made.actions if replica_created(a)]


@pytest.mark.parametrize("kind", FRAMEWORKS)
@pytest.mark.parametrize("mode", FILES)
def test_children_of_a_whole_job(kind: str, mode: str):
    expected = list(yaml.safe_load_all((GOLDEN / f"{kind.lower()}-{FILES[mode]}.yaml").read_text()))
    made = children(FRAMEWORKS[kind], mode)
    assert [(child["kind"], child["metadata"]["name"]) for child in made] == [
        (child["kind"], child["metadata"]["name"]) for child in expected
    ]
    for child, golden in zip(made, expected, strict=True):
        assert child == golden


class Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def write(framework: Framework, mode: str) -> None:
    text = io.StringIO()
    where = " with service mode job" if mode == "job" else ""
    text.write(f"# What the job of {framework.kind.lower()}-job.yaml gets in its first pass{where}, in order.\n")
    yaml.dump_all(children(framework, mode), text, Dumper=Dumper, sort_keys=False, width=120)
    (GOLDEN / f"{framework.kind.lower()}-{FILES[mode]}.yaml").write_text(text.getvalue())


if __name__ == "__main__":
    for each in FRAMEWORKS.values():
        for mode in FILES:
            write(each, mode)
