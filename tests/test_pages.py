"""What the pages promise their readers: sentences that end, each fact in one place, lists that are complete."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from e2e.docs.flags import FOLDER, PROGRAMS
from e2e.docs.website import reached_files
from e2e.realnode.images import IMAGES
from trainop.cli import cli
from trainop.programs.settings import FLAGS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in reached_files() if path.suffix == ".md" and path.name != "CHANGELOG.md")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_first_sentence_of_a_page_ends(page: Path):
    """Prose after the title ends with a full stop, or with a colon before a list, a table or a command."""
    blocks = re.split(r"\n\n+", re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).strip())
    prose = next(block for block in blocks if not block.startswith("#"))
    assert prose.startswith(("|", "```", "- ")) or prose.rstrip()[-1] in ".:", prose


# The changelog --------------------------------------------------------------------------------------------------------


def test_a_release_is_told_in_sixty_lines():
    """The changelog is what a user must know. If an entry does not fit, shorten others: details belong to the pages."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    _, *releases = re.split(r"^(?=## \[)", text, flags=re.MULTILINE)
    assert releases
    for release in releases:
        lines = release.strip().splitlines()
        assert len(lines) <= 60, lines[0]
        assert [line for line in lines if len(line) > 160] == []
        groups = [line.removeprefix("### ") for line in lines if line.startswith("###")]
        assert groups == [group for group in ("Added", "Changed", "Fixed") if group in groups], lines[0]
        entries = re.split(r"^(?=- |#|\n)", release, flags=re.MULTILINE)
        assert [entry for entry in entries if entry.startswith("- ") and not entry.rstrip().endswith(".")] == []


# Versions of frameworks -----------------------------------------------------------------------------------------------

FRAMEWORKS = {
    "tensorflow-cpu": "TensorFlow",
    "jax": "JAX",
    "xgboost-cpu": "XGBoost",
    "paddlepaddle": "Paddle",
    "mxnet": "MXNet",
    "horovod": "Horovod",
    "numpy": "NumPy",
    "torch": "PyTorch",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
}
"""The name of a package or image, and of the framework."""


def test_versions_of_frameworks_are_on_one_page_only():
    names = "|".join(set(FRAMEWORKS.values()) - {"NumPy"})
    for page in set(PAGES) - {DOCS / "frameworks.md"}:
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"^ *```.*?^ *```|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)
        found = re.findall(rf"\b(?:{names}) \d+\.\d+\S*", re.sub(r"MPICH before \S+", "", prose))
        assert found == [], f"{name_of(page)} names versions; link to docs/frameworks.md"


def test_the_versions_of_the_page_are_those_of_the_images():
    text = (DOCS / "frameworks.md").read_text(encoding="utf-8").split("## On this machine")[0]
    for name, recipe in IMAGES.items():
        for package in (*recipe.pip, *recipe.compiled):
            framework, _, version = package.partition("==")
            if name != "base":
                assert f"{FRAMEWORKS[framework]} {version}" in text
    for debian in ("torch", "openmpi", "mpich"):
        assert re.search(rf"{FRAMEWORKS[debian]} \d[^|]+\(Debian 12\)", text)


# Flags ----------------------------------------------------------------------------------------------------------------


def test_every_command_has_a_page_or_section_of_its_flags():
    """`make docs` writes them, and `test_docs.py` compares; here the list of the commands is that of the program."""
    commands = (FOLDER / "commands.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## trainop (\S+)$", commands, re.MULTILINE)
    pages = [path.stem for path in FOLDER.glob("*.md")]
    assert sorted([*sections, *pages]) == sorted([*cli.list_commands(click.Context(cli)), "commands"])
    assert sorted(pages) == sorted([*PROGRAMS, "commands"])


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=name_of)
def test_every_flag_has_a_meaning_and_stands_once(page: Path):
    for section in re.split(r"^# |^## trainop ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `-")]
        names = [re.findall(r"`(-[^`]+)`", row[0])[0] for row in rows]
        assert len(names) == len(set(names))
        assert [name for name, row in zip(names, rows, strict=True) if len(row[-1]) < 5 or len(row) != 3] == []


def test_defaults_of_flags_are_on_the_generated_pages_only():
    for page in set(PAGES) - set(FOLDER.glob("*.md")):
        heads = re.findall(r"^\|(.*)\|\n\|[-| ]+\|\n\| `--", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert [head for head in heads if "default" in head] == [], name_of(page)


# Decisions ------------------------------------------------------------------------------------------------------------

DECISIONS = DOCS / "decisions"


def test_decisions_are_numbered_without_a_gap_and_listed():
    files = sorted(path for path in DECISIONS.glob("*.md") if path.name != "README.md")
    assert [path.name[:4] for path in files] == [f"{number:04}" for number in range(1, len(files) + 1)]
    for number, path in enumerate(files, 1):
        assert path.read_text(encoding="utf-8").startswith(f"# {number}. "), path.name
    index = (DECISIONS / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    assert re.findall(r"^\| \[\d+\]\(([^)]+)\)", index, re.MULTILINE) == [path.name for path in files]


def charter() -> list[tuple[list[str], str]]:
    """What the charter requires, by its names in backticks, and what there is."""
    text = (DECISIONS / "README.md").read_text(encoding="utf-8").split("## The charter")[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    return [(re.findall(r"`([^`]+)`", required), here) for required, here in rows]


def test_what_deviates_from_the_charter_has_a_record_and_nothing_else():
    assert all(here.startswith(("as required", "deviates: ")) for _, here in charter())
    assert all(re.search(r"\(00\d\d-[^)]+\)", here) for _, here in charter() if here.startswith("deviates"))


def test_the_packages_of_the_charter_are_where_the_page_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    base, development = (
        {re.split(r"[>=\[ ;]", each)[0].lower() for each in packages}
        for packages in (project["project"]["dependencies"], project["dependency-groups"]["dev"])
    )
    wanted = {name: here for names, here in charter() for name in names}
    assert {"aiohttp", "structlog", "prometheus-client"} <= {n for n, here in wanted.items() if "base packages" in here}
    assert "pytest-asyncio" in development
    assert "kubernetes-asyncio" not in base
    (named,) = (here for _, here in charter() if "`msgspec`" in here)
    others = {name.lower() for name in re.findall(r"`([^`]+)`", named)}
    assert base == others | {"aiohttp", "structlog", "prometheus-client"}


def test_the_folders_and_flags_of_the_charter_are_there():
    for names, here in charter():
        for name in names:
            if name.startswith("--"):
                assert name.removeprefix("--") in {flag.name for flag in FLAGS}
            elif name.endswith("/") or name in {"Makefile", "pyproject.toml"}:
                assert here.startswith("as required")
                assert (ROOT / name).exists()


# Readers --------------------------------------------------------------------------------------------------------------


def test_the_navigation_is_by_reader():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    sections = {name: entries for entry in nav if isinstance(entry, dict) for name, entries in entry.items()}
    assert list(sections) == ["Home", "Use", "Troubleshoot", "Operate", "Extend", "Develop"]
    operate = sections["Operate"]
    order = ["install.md", "monitoring.md", "upgrade.md", "migrate.md"]
    assert operate[0] == "install.md"
    assert sorted(order, key=operate.index) == order


def test_the_contents_have_every_page_but_the_records():
    """In the order of the navigation, which `make docs` writes and `test_docs.py` compares."""
    text = (DOCS / "contents.md").read_text(encoding="utf-8")
    listed = [(DOCS / target).resolve() for target in re.findall(r"^- \[.+?\]\((\S+?)\)", text, re.MULTILINE)]
    records = set(DECISIONS.glob("0*.md"))
    assert set(listed) == {*PAGES, ROOT / "CHANGELOG.md"} - {ROOT / "README.md", DOCS / "contents.md"} - records
    assert len(listed) == len(set(listed))


# Manifests ------------------------------------------------------------------------------------------------------------

YAML = re.compile(r"^```yaml\n(.*?)^```|<<'YAML'[^\n]*\n(.*?)^YAML$", re.MULTILINE | re.DOTALL)
INVALID = "0-invalid"
"""The job that `docs/install.md` shows to be refused."""
NEW = "kind: MyJob"
"""The kind that `docs/new-kind.md` makes."""


def test_the_jobs_on_the_pages_are_valid(tmp_path: Path):
    """All whole manifests of jobs, in blocks of YAML or after `<<'YAML'`; `test_how_to.py` also applies its own."""
    found = 0
    for page in PAGES:
        for block in filter(None, (one or other for one, other in YAML.findall(page.read_text(encoding="utf-8")))):
            if re.search(r"^kind: \w+Job$", block, re.MULTILINE) and INVALID not in block and NEW not in block:
                found += 1
                (tmp_path / f"{page.stem}-{found}.yaml").write_text(block, encoding="utf-8")
    assert found >= 15
    command = [sys.executable, "-m", "trainop", "check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r" is valid$", done.stdout, re.MULTILINE)) >= found
