"""The releases of Kubernetes that the test cluster can be built of: how one is chosen, and where its programs are."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import releases
from e2e.cluster.build import STANDARD, outdated, programs_of
from e2e.cluster.components import ClusterOptions, make_plan
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import ClusterError, binary
from e2e.cluster.releases import DEFAULT, NEWEST, OLDEST, RELEASES, VARIABLE, Release, find_release


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run itself may have chosen a release."""
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with an empty file for each program of a control plane, of all releases."""
    monkeypatch.setenv("TRAINOP_TESTENV", str(tmp_path / "cache"))
    for folder in ("bin", *(f"{release.version}/bin" for release in RELEASES)):
        (tmp_path / "cache" / folder).mkdir(parents=True)
    for release in RELEASES:
        for name in releases.PROGRAMS:
            (tmp_path / "cache" / release.version / "bin" / name).touch()
    for name in ("etcd", "kwok"):
        (tmp_path / "cache" / "bin" / name).touch()
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        ("", None, DEFAULT),
        ("", "", DEFAULT),
        ("", "1.36", RELEASES[2]),
        ("1.37", "1.36", RELEASES[3]),
        ("v1.35.4", None, RELEASES[1]),
        ("1.34.4", None, RELEASES[0]),
    ],
)
def test_the_argument_chooses_before_the_environment(
    given: str, variable: str | None, found: Release, monkeypatch: pytest.MonkeyPatch
):
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    assert find_release(given) == found


@pytest.mark.parametrize("name", ["1.33", "1.3", "latest", "1.37.1", "../1.37", "v"])
def test_an_unknown_release_is_refused_with_those_there_are(name: str, monkeypatch: pytest.MonkeyPatch):
    refused = rf"^Kubernetes {name}: not one of 1\.34, 1\.35, 1\.36, 1\.37$"
    with pytest.raises(ClusterError, match=refused):
        find_release(name)
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(ClusterError, match=refused):
        ControlPlane(Path("nowhere")).up(ClusterOptions())


def test_releases_are_in_order_and_each_program_reports_its_own():
    assert (OLDEST.name, NEWEST.name, OLDEST.module) == ("1.34", "1.37", "kubernetes-1.34")
    minors = [int(release.name.split(".")[1]) for release in RELEASES]
    assert minors == [*range(minors[0], minors[0] + len(minors))]
    for release in RELEASES:
        program = programs_of(release)["kubelet"]
        assert f"version.gitVersion={release.version} " in program.linker_flags
        assert program.linker_flags.endswith(f"gitMinor={release.name[2:]}")
        assert (program.sources / "go.sum").exists()


def test_programs_of_all_releases_lie_side_by_side(built: Path):
    plans = {
        release: make_plan(built / release.name, ClusterOptions(("controller-manager", "kwok"), release=release.name))
        for release in RELEASES
    }
    for release, plan in plans.items():
        programs = {name: command[0] for name, command in plan.commands.items()}
        own = built / release.version / "bin"
        assert programs == {
            "etcd": f"{built}/bin/etcd",
            "kube-apiserver": f"{own}/kube-apiserver",
            "kube-controller-manager": f"{own}/kube-controller-manager",
            "kwok": f"{built}/bin/kwok",
        }


def test_a_program_that_is_missing_is_named_with_its_release(built: Path, monkeypatch: pytest.MonkeyPatch):
    (built / "v1.37.2" / "bin" / "kubelet").unlink()
    assert binary("kubelet", "1.36").exists()
    with pytest.raises(ClusterError, match=r"build --release 1\.37 kubelet`$"):
        binary("kubelet", "1.37")
    with pytest.raises(ClusterError, match=r"build helm`$"):
        binary("helm", "1.37")
    assert outdated(STANDARD, "1.37") == [*STANDARD]  # empty files are the programs of no source
