"""No place that lists the kinds of jobs forgets one.

In Python, each literal that names most kinds is such a place, wherever it is; other files have rows in `PLACES`.
`PARTIAL` and `FOLLOW` say why some literals may leave kinds out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from trainop.programs.schemes import FRAMEWORKS, KINDS, crds

ROOT = Path(__file__).parents[1]
OF_UPSTREAM = {"TFJob", "PyTorchJob", "MXJob", "XGBoostJob", "PaddleJob", "JAXJob"}
"""Written by hand, as a new kind is rarely one of them."""
MOST = 4
"""A literal with so many of upstream's kinds lists kinds."""
PARTIAL = {
    "e2e/docs/page.py: NOTES": "remarks, where there is something to remark",
    "e2e/docs/rules.py: INVALID": "jobs that only one kind refuses",
    "e2e/schedulers/kueue.py: KINDS": "Kueue knows no other kinds",
    "e2e/schedulers/queues.py: COUNTS": "Kueue knows no other kinds",
    "e2e/schedulers/test_kueue.py: test_topology_places_replicas_by_index": "Kueue knows no other kinds",
    "tests/controllers/test_admission.py: test_rules_of_one_kind": "rules that only one kind has",
    "tests/controllers/test_begun.py: CASES": "fields that only some kinds have",
    "tests/controllers/test_hostile.py: OWN_FIELDS": "fields that only some kinds have",
    "tests/run/test_script.py: SHAPES": "kinds of which each replica runs the same program",
    "tests/explain/test_launching.py: WRONG": "commands that contradict what some kinds set",
}
"""Literals that may leave out any kind, and why."""
FOLLOW = {
    "e2e/parity/children.py: SCENARIOS": "compares with the Go operators, which know no other kinds",
    "e2e/realnode/test_service_mode.py: JOBS": "runs on a real node, whose programs exist for upstream's kinds",
    "e2e/realnode/test_wrong_environment.py: ROWS": "runs upstream's frameworks",
    "e2e/sdk/program/shapes.py: SHAPES": "upstream's SDK knows no other kinds",
    "tests/controllers/test_stories.py: UPSTREAM": "where upstream's texts come from",
    "tests/server/test_hostile.py: OF_KIND": "a new kind may have no invalid job of its own",
    "tests/simulation/in_place_draw.py: SHAPES": "jobs of which all replicas fail when one does",
    "tests/test_registries.py: OF_UPSTREAM": "upstream's kinds",
}
"""Literals that have all of upstream's kinds, and why they may leave out others."""

# Python ---------------------------------------------------------------------------------------------------------------


def names_in(text: str) -> set[str]:
    """The kinds that a text names in any case, or by their plural."""
    words = {word.lower().removesuffix("s") for word in re.findall(r"\w+", text)}
    return {kind for kind in FRAMEWORKS if kind.lower() in words}


def literals(node: ast.AST, name: str = "") -> Iterator[tuple[str, set[str]]]:
    """What each outermost literal is assigned to, or else the function or class that has it, and the kinds in it."""
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.Assign | ast.AnnAssign):
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            inner = getattr(target, "id", name)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = child.name
        if isinstance(child, ast.Dict | ast.List | ast.Tuple | ast.Set | ast.Constant):
            texts = (each.value for each in ast.walk(child) if isinstance(each, ast.Constant))
            yield inner, {kind for text in texts if isinstance(text, str) for kind in names_in(text)}
        else:
            yield from literals(child, inner)


def lists_in_python() -> dict[str, set[str]]:
    """The literals of all Python files that name most kinds, as `file: name`."""
    found: dict[str, set[str]] = {}
    for folder in ("trainop", "tests", "e2e", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if len(names_in(text) & OF_UPSTREAM) < MOST:
                continue
            for name, kinds in literals(ast.parse(text)):
                if len(kinds & OF_UPSTREAM) >= MOST:
                    found[f"{path.relative_to(ROOT)}: {name}"] = kinds
    return found


IN_PYTHON = lists_in_python()


# Other files ----------------------------------------------------------------------------------------------------------


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def names_of_files(pattern: str) -> str:
    """All words of the names of some files."""
    return " ".join(re.sub(r"[-.]", " ", path.name) for path in ROOT.glob(pattern))


def resources_of(path: str) -> str:
    """The resources in the rules of all roles and webhooks of a manifest."""
    objects = [each for each in yaml.safe_load_all(read(path)) if each]
    rules = [rule for each in objects for rule in each.get("rules") or ()]
    rules += [rule for each in objects for hook in each.get("webhooks") or () for rule in hook["rules"]]
    return " ".join(resource for rule in rules for resource in rule.get("resources") or ())


def examples() -> str:
    return " ".join(
        framework.kind for framework in FRAMEWORKS.values() if (ROOT / "examples" / framework.name).is_dir()
    )


PLACES: dict[str, Callable[[], str]] = {
    "trainop.programs.schemes.KINDS": lambda: " ".join(KINDS),
    "trainop.programs.schemes.crds": lambda: " ".join(each["spec"]["names"]["kind"] for each in crds()),
    "pyproject.toml: description": lambda: re.findall(r'^description = "(.*)"$', read("pyproject.toml"), re.MULTILINE)[
        0
    ],
    "README.md: table of kinds": lambda: " ".join(re.findall(r"^\| \[(\w+)\]", read("README.md"), re.MULTILINE)),
    "mkdocs.yml: nav": lambda: " ".join(re.findall(r"- kinds/(\w+)\.md", read("mkdocs.yml"))),
    "docs/kinds/<kind>.md": lambda: names_of_files("docs/kinds/*.md"),
    "examples/<name>/": examples,
    "manifests/crds/": lambda: names_of_files("manifests/crds/*.yaml"),
    "manifests/crds/kustomization.yaml": lambda: read("manifests/crds/kustomization.yaml"),
    "manifests/crds-typed/kustomization.yaml": lambda: read("manifests/crds-typed/kustomization.yaml"),
    "manifests/base/rbac.yaml": lambda: resources_of("manifests/base/rbac.yaml"),
    "manifests/base/webhook.yaml": lambda: resources_of("manifests/base/webhook.yaml"),
    "manifests/overlays/namespaced/role.yaml": lambda: resources_of("manifests/overlays/namespaced/role.yaml"),
    "manifests/overlays/kubeflow/roles.yaml": lambda: resources_of("manifests/overlays/kubeflow/roles.yaml"),
    "manifests/components/user-roles": lambda: resources_of("manifests/components/user-roles/user-roles.yaml"),
    "manifests/components/namespace-admins": lambda: resources_of(
        "manifests/components/namespace-admins/namespace-admins.yaml"
    ),
    "manifests/chart/crds/": lambda: names_of_files("manifests/chart/crds/*.yaml"),
    "manifests/chart/Chart.yaml": lambda: read("manifests/chart/Chart.yaml"),
    "manifests/chart/values.schema.json": lambda: read("manifests/chart/values.schema.json"),
    "manifests/chart/templates/rbac.yaml": lambda: read("manifests/chart/templates/rbac.yaml"),
    "manifests/chart/templates/user-roles.yaml": lambda: read("manifests/chart/templates/user-roles.yaml"),
    "manifests/chart/templates/webhook.yaml": lambda: read("manifests/chart/templates/webhook.yaml"),
    "docs/flags/operator.md": lambda: read("docs/flags/operator.md"),
    "tests/kinds/": lambda: " ".join(
        word
        for path in (ROOT / "tests" / "kinds").glob("test_*.py")
        for word in re.findall(r'\A"""Specifics of (\w+)', path.read_text(encoding="utf-8"))
    ),
    "tests/engine/golden/<kind>-job.yaml": lambda: names_of_files("tests/engine/golden/*-job.yaml"),
    "tests/engine/golden/<kind>-children.yaml": lambda: names_of_files("tests/engine/golden/*-children.yaml"),
    "tests/controllers/golden/<kind>.yaml": lambda: names_of_files("tests/controllers/golden/*.yaml"),
}
"""Each answers a text that must name every kind."""


# Tests ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", sorted(IN_PYTHON.keys() - PARTIAL.keys()))
def test_a_literal_that_lists_kinds_has_them_all(place: str):
    wanted = OF_UPSTREAM if place in FOLLOW else set(FRAMEWORKS)
    left_out = sorted(wanted - IN_PYTHON[place])
    assert not left_out, f"{place} leaves out {left_out}: docs/new-kind.md"


@pytest.mark.parametrize("place", PLACES)
def test_a_file_that_lists_kinds_has_them_all(place: str):
    left_out = sorted(set(FRAMEWORKS) - names_in(PLACES[place]()))
    assert not left_out, f"{place} leaves out {left_out}: docs/new-kind.md"


def test_every_exception_is_still_one():
    """Places that are gone have no exception; one that has all kinds needs none."""
    assert PARTIAL.keys() | FOLLOW.keys() <= IN_PYTHON.keys()
    assert [place for place in PARTIAL if IN_PYTHON[place] >= set(FRAMEWORKS)] == []


def test_the_registers_that_tests_stand_on_are_found():
    """The search itself works: these are known to list kinds."""
    assert IN_PYTHON.keys() >= {
        "tests/controllers/kinds.py: SHAPES",
        "tests/controllers/test_admission.py: ROLES",
        "tests/server/kinds.py: ROWS",
        "tests/simulation/oracle/kinds.py: KINDS",
        "tests/simulation/oracle/variables.py: _RULES",
        "tests/simulation/test_oracle.py: TABLE",
    }


def test_nothing_that_a_new_kind_brought_is_left_to_do():
    """`make new-kind` marks what it writes; whoever has looked at a row removes its mark."""
    mark = "TODO" + "(new kind)"
    folders = ("trainop", "tests", "e2e", "examples", "docs")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".yaml"}
    ]
    marked = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted([*files, ROOT / "README.md", ROOT / "mkdocs.yml"])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if mark in line
    ]
    assert not marked, "\n".join(marked)
