"""`docs/`: generated pages are up to date, and every file, target, link, module and heading that a page names
exists."""

from __future__ import annotations

import importlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.docs.__main__ import generated, pages
from e2e.docs.rules import probe
from e2e.docs.samples import plain, plain_job
from e2e.docs.website import ELSEWHERE, place_of, reached_files
from tests.engine.builders import manifest_of, pod_created, service_created
from trainop.engine.addresses import service_name
from trainop.engine.fields import MAX_LABEL_LENGTH
from trainop.engine.plan import plan
from trainop.engine.readings import READINGS, Effect
from trainop.engine.restart_history import BACKOFF_RESET_AFTER, MAX_BACKOFF
from trainop.engine.schema.crd import crd
from trainop.engine.seen import Snapshot
from trainop.kinds.tf_config import MAX_CLUSTER_IN_ENVIRONMENT
from trainop.programs.schemes import FRAMEWORKS
from trainop.programs.settings import Settings
from trainop.run.session import exit_code
from trainop.runtime.objects.metadata import Unstructured

ROOT = Path(__file__).parent.parent
PYTHON_FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("trainop", "tests", "e2e", "examples")
    for path in (ROOT / folder).rglob("*.py")
)
ALL_PAGES = sorted(path for path in reached_files() if path.suffix == ".md")
PAGES = pytest.mark.parametrize(
    "page",
    [path for path in ALL_PAGES if path.name != "CHANGELOG.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
"""All pages except the changelog, which may name files and modules that were removed."""


def test_the_pages_of_the_kinds_are_up_to_date():
    assert generated() == pages(), "run `make docs`"


@pytest.mark.parametrize(
    ("kind", "roles", "spec", "reported"),
    [
        ("TFJob", ("Chief", "PS", "Worker"), {}, ("`Chief`", "all of `Chief`")),
        ("TFJob", ("Worker",), {}, ("`Worker`", "the first of `Worker`")),
        ("TFJob", ("Worker",), {"successPolicy": "AllWorkers"}, ("`Worker`", "all of `Worker`")),
        ("PyTorchJob", ("Master", "Worker"), {}, ("`Master`", "`Master`")),
        ("PyTorchJob", ("Worker",), {"elasticPolicy": {}}, ("`Worker`", "any of `Worker`")),
        ("JAXJob", ("Worker",), {}, ("`Worker`", "all of `Worker`")),
    ],
)
def test_the_deciding_replicas_are_found_by_trying(
    kind: str, roles: tuple[str, ...], spec: dict[str, object], reported: object
):
    framework = FRAMEWORKS[kind]
    assert probe(framework, plain_job(framework, roles, **spec)) == reported


def test_a_new_kind_needs_only_its_file():
    """Runs the program in `docs/new-kind.md` unchanged."""
    text = (ROOT / "docs" / "new-kind.md").read_text(encoding="utf-8")
    program = text.split("```python\n")[1].split("```")[0]
    scope: dict[str, Any] = {}
    exec(compile(program, "new-kind.md", "exec"), scope)  # noqa: S102  our own page, which is what is tested
    framework = scope["MY"]
    now = datetime(2025, 6, 1, tzinfo=UTC)
    raw = Unstructured(plain(framework, {"Worker": 2}))
    made = plan(framework, Snapshot(raw, (), (), now)).actions
    pods = [manifest_of(action) for action in made if pod_created(action)]
    assert [pod["spec"]["containers"][0]["env"] for pod in pods] == [
        [{"name": "MY_PEERS", "value": "j-worker-0:7777,j-worker-1:7777"}, {"name": "MY_RANK", "value": str(index)}]
        for index in range(2)
    ]
    assert len([action for action in made if service_created(action)]) == 2
    assert crd(framework)["metadata"]["name"] == "myjobs.kubeflow.org"


@PAGES
def test_files_that_a_page_names_are_there(page: Path):
    """Names in backticks: paths from the top such as `trainop/cli.py` (`<kind>` stands for any), names of Python files
    such as `store.py`, and modules such as `trainop.cli`, with or without a name that they define."""
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:trainop|tests|docs|examples|manifests|e2e)/[\w./<>*-]+)`", text):
        assert list(ROOT.glob(re.sub(r"<\w+>", "*", name).rstrip("/"))), f"{page.name} names {name}"
    for name in re.findall(r"`([\w./]+\.py)`", text):
        assert any(("/" + path).endswith("/" + name) for path in PYTHON_FILES), f"{page.name} names {name}"
    for name in re.findall(r"`((?:trainop|tests|e2e)(?:\.\w+)+)`", text):
        assert is_there(name), f"{page.name} names {name}"


def is_there(name: str) -> bool:
    """Whether a dotted name is a module or a name defined in one. Modules that are scripts are not imported."""
    if (ROOT / (path := name.replace(".", "/"))).is_dir() or f"{path}.py" in PYTHON_FILES:
        return True
    module, _, member = name.rpartition(".")
    if not module or not is_there(module):
        return False
    found = importlib.import_module(module)
    return hasattr(found, member) or (ROOT / path).exists()


def test_names_of_modules_that_are_gone_are_found():
    assert is_there("trainop.programs.operator.build")
    assert not is_there("trainop.programs.operator.nothing")
    assert not is_there("trainop.nothing.build")


@PAGES
def test_targets_that_a_page_names_are_there(page: Path):
    text = page.read_text(encoding="utf-8")
    text = "\n".join(re.findall(r"^ *```.*?^ *```|`[^`\n]+`", text, re.DOTALL | re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)\b", text)) <= targets


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_have_a_target(page: Path):
    """A link leads to a file (the website cannot show a folder), and to a heading by GitHub's rules for anchors."""
    prose = re.sub(r"^ *```.*?^ *```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_file(), f"{page.name} links to {target}"
        assert found.is_relative_to(ROOT), f"{page.name} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


@PAGES
def test_headings_of_a_page_differ(page: Path):
    """Two equal headings are mostly a section that stands there twice, in an old and a new version."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    assert sorted({title for title in titles if titles.count(title) > 1}) == []


@PAGES
def test_lists_of_a_page_follow_an_empty_line(page: Path):
    """Without an empty line before its first item, the website shows a list as a paragraph."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    paragraphs = [block for block in prose.split("\n\n") if not re.match(r"\s*(- |\d+\. |\||#+ )", block)]
    assert [block for block in paragraphs if re.search(r"^(- |1\. )", block, re.MULTILINE)] == []


def test_every_page_is_in_the_navigation_of_the_website():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed: list[str] = []
    queue = [config["nav"]]
    while queue:
        match queue.pop():
            case str(name):
                listed.append(name)
            case list(entries):
                queue += entries
            case dict(section):
                queue += section.values()
    assert sorted(listed) == sorted(place_of(path) for path in reached_files() if path.suffix == ".md")


def test_the_website_loads_nothing_from_elsewhere():
    """Fonts would; what else a page might load fails `make site` (`e2e/docs/website.py`)."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript", "extra_templates"} & config.keys()
    assert ELSEWHERE.findall(
        '<link href="https://fonts.example/x"><script src=//x.example/y.js></script><a href="//z">'
    )
    assert not ELSEWHERE.findall('<link href="assets/x.css"><a href="https://z.example"><img src="e2e/s1.svg">')


def questions() -> dict[str, tuple[str, str, str]]:
    """Question -> file, names to look for, and answer."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("## Ten questions\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+\?) \| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return {question: (path, names, answer) for question, path, names, answer in rows}


def test_the_ten_questions_are_answered_by_the_files_they_name():
    assert len(questions()) == 10
    for question, (path, names, _) in questions().items():
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.findall(r"`(\w+)`", names), question
        for name in re.findall(r"`(\w+)`", names):
            found = re.search(
                rf"^ *(?:async )?(?:def|class) {name}\b|^ *{name}\b.* =|[\"']{name}[\"']:", source, re.MULTILINE
            )
            assert found, f"{question} {path} does not define {name}"


@pytest.mark.parametrize(
    ("topic", "values"),
    [
        ("subdomain", [service_name("<job>")]),
        ("names", [str(MAX_LABEL_LENGTH)]),
        ("back-off", [f"{MAX_BACKOFF:.0f} s", f"{BACKOFF_RESET_AFTER:.0f} s"]),
        ("exit code", [f"{exit_code([])} all succeeded"]),
        (
            "kubectl get",
            [
                column["name"]
                for column in crd(FRAMEWORKS["TFJob"])["spec"]["versions"][0]["additionalPrinterColumns"]
                if not column.get("priority")
            ],
        ),
        ("lease", [Settings().leader_election_id]),
        ("TF_CONFIG", [str(MAX_CLUSTER_IN_ENVIRONMENT)]),
    ],
)
def test_the_answer_to_a_question_has_the_values_of_the_program(topic: str, values: list[str]):
    ((_, _, answer),) = (row for question, row in questions().items() if topic in question)
    assert all(value in answer for value in values), (answer, values)


def test_the_page_of_wrong_fields_has_the_table_that_is_followed():
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8").split("\n## ")[0]
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
