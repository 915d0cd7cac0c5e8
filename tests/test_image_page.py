"""The image as its page, the Containerfile, the Makefile and the releases describe it: they agree, and what can be run
without a container runtime is run. `e2e/image` tests the image that `make image` builds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from e2e.image.places import USER, archive_path, sbom_path, version
from e2e.image.python import SITE, unpack

ROOT = Path(__file__).parent.parent
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/image.md").read_text(encoding="utf-8")
DIGEST = f"sha256:{'0' * 64}"
INSTRUCTIONS = [line.split(maxsplit=1) for line in CONTAINERFILE.splitlines() if re.match(r"[A-Z]+ ", line)]


def given(instruction: str) -> list[str]:
    """The arguments of each instruction of this name."""
    return [arguments for name, arguments in INSTRUCTIONS if name == instruction]


def default_base() -> str:
    (found,) = (argument.removeprefix("BASE=") for argument in given("ARG") if argument.startswith("BASE="))
    return found


def commands() -> list[str]:
    """The lines of all code blocks of the page, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [line.partition("    #")[0].strip() for block in blocks for line in block.splitlines()]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "--dry-run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_stage_is_built_on_the_base_that_is_given():
    """An `ARG` before the first `FROM` can be used in any `FROM`, and nowhere else unless it is declared again."""
    assert INSTRUCTIONS[0] == ["ARG", f"BASE={default_base()}"]
    assert [each.partition(" AS ")[0] for each in given("FROM")] == ["${BASE}"] * 2
    labels = shlex.split(" ".join(given("LABEL")))
    assert "org.opencontainers.image.base.name=${BASE}" in labels
    last_stage = INSTRUCTIONS[max(index for index, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM") :]
    assert last_stage.index(["ARG", "BASE"]) < [name for name, _ in last_stage].index("LABEL")


def test_page_containerfile_and_makefile_name_the_same_base():
    assert f"by default `{default_base()}`" in PAGE
    assert f"skopeo inspect --raw docker://{default_base()} | sha256sum" in commands()
    assert f"make container BASE={default_base()}@sha256:DIGEST" in commands()
    assert f"make container BASE={default_base()}@sha256:" in CONTAINERFILE
    assert f"on BASE={default_base()}@sha256:" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("base", ["", "docker.io/library/python:3.13-slim"])
def test_a_base_without_digest_is_refused_before_anything_is_built(base: str):
    command = ["make", "--no-print-directory", "container", f"BASE={base}", "ENGINE=false"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "BASE names no digest; docs/image.md" in done.stderr


@pytest.mark.parametrize("engine", ["", "docker"])
def test_the_image_of_the_containerfile_is_built_on_the_base_that_is_given(engine: str):
    base = f"{default_base()}@{DIGEST}"
    done = make("container", f"BASE={base}", *([f"ENGINE={engine}"] if engine else []))
    assert done.returncode == 0, done.stderr
    built = shlex.split(done.stdout.splitlines()[-1])
    arguments = [
        "build",
        "--file",
        "Containerfile",
        "--build-arg",
        f"BASE={base}",
        "--tag",
        f"trainop:{version()}",
        ".",
    ]
    assert built == [engine or "podman", *arguments]
    assert "-m build" in done.stdout, "the wheel is built first"


def test_the_containerfile_links_every_program_and_runs_as_the_same_user():
    (loop,) = re.findall(r"for program in (.+?); do", CONTAINERFILE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(loop.split()) == sorted(project["scripts"])
    assert given("USER") == [f"{USER}:{USER}"]
    assert given("ENTRYPOINT") == ['["/manager"]']


def test_what_the_containerfile_runs_in_python_works_here():
    (statement,) = re.findall(r'RUN \["/opt/trainop/bin/python", "-c", "(.+)"\]', CONTAINERFILE)
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_commands_of_the_page_are_targets_and_name_this_version():
    found = [shlex.split(line) for line in commands()]
    for target in (words[1] for words in found if words[:1] == ["make"]):
        assert make(target, f"BASE=x@{DIGEST}").returncode == 0, target
    assert f"VERSION={version()}" in [word for words in found for word in words]
    used = {word for words in found for word in words if "build/image/" in word}
    files = {word.rpartition("/")[2].replace("$VERSION", version()) for word in used}
    assert files == {archive_path().name, sbom_path().name}


def test_a_release_signs_and_verifies_as_the_page_does():
    """For each thing that is signed, the page has the command that verifies it, with the same kind of predicate."""
    cosign = [shlex.split(line)[1:] for line in commands() if line.startswith("cosign ")]
    assert [words[0] for words in cosign] == ["attest", "sign", "verify", "verify-attestation"]
    assert [words[words.index("--type") + 1] for words in cosign if "--type" in words] == ["cyclonedx"] * 2
    for words in cosign:
        assert re.search(r"@(\$DIGEST|sha256:DIGEST)", words[-1]), f"a tag can move: {words}"
        if words[0].startswith("verify"):
            assert {"--certificate-identity=IDENTITY", "--certificate-oidc-issuer=ISSUER"} <= set(words)
    assert "docs/image.md#signatures" in (ROOT / "RELEASE.md").read_text(encoding="utf-8")


def test_installation_and_security_lead_to_the_page():
    for page in ("install", "security"):
        assert "(image.md" in (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")


def test_the_image_has_the_stubs_from_which_the_operator_reads_its_names(tmp_path: Path):
    """Those of others are for type checkers only."""
    wheel = tmp_path / "any.whl"
    stubs = [path.relative_to(ROOT).as_posix() for path in (ROOT / "trainop").rglob("*.pyi")]
    assert stubs
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*stubs, "other/__init__.py", "other/__init__.pyi"):
            archive.writestr(name, "")
    unpack([wheel], tmp_path)
    found = {path.relative_to(tmp_path / SITE).as_posix() for path in (tmp_path / SITE).rglob("*.py*")}
    assert found == {*stubs, "other/__init__.py"}
