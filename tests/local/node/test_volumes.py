"""Volumes: their files, their paths in containers, and errors of unsupported or missing ones."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from trainop.local.node.pods.environment import Placement, Reference
from trainop.local.node.pods.volumes import (
    File,
    VolumeDirectory,
    VolumeError,
    render_files,
    volume_references,
    write_files,
)
from trainop.local.node.sandbox.filesystem import Mount

HERE = Placement("local", "10.244.0.1", "10.244.0.7")
SOURCES = {
    Reference("configmap", "settings"): {"data": {"a.yaml": "a: 1", "b.yaml": "b: 2"}},
    Reference("secret", "keys"): {"data": {"id": base64.b64encode(b"private").decode()}},
}


def make_pod(*volumes: dict[str, Any], **mounts: list[dict[str, Any]]) -> dict[str, Any]:
    containers = [{"name": name, "volumeMounts": own} for name, own in (mounts or {"main": []}).items()]
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "labels": {"app": "x"}},
        "spec": {"containers": containers, "volumes": list(volumes)},
    }


def files_of(volume: dict[str, Any]) -> dict[str, File]:
    return render_files({"name": "v", **volume}, make_pod(), SOURCES, HERE)


@pytest.mark.parametrize(
    ("volume", "files"),
    [
        ({"configMap": {"name": "settings"}}, {"a.yaml": File(b"a: 1", 0o644), "b.yaml": File(b"b: 2", 0o644)}),
        (
            {"configMap": {"name": "settings", "defaultMode": 0o555, "items": [{"key": "a.yaml", "path": "x/a"}]}},
            {"x/a": File(b"a: 1", 0o555)},
        ),
        (
            {"secret": {"secretName": "keys", "items": [{"key": "id", "path": "id", "mode": 0o600}]}},
            {"id": File(b"private", 0o600)},
        ),
        ({"secret": {"secretName": "keys", "defaultMode": 0o644}}, {"id": File(b"private", 0o600)}),
        ({"secret": {"secretName": "gone", "optional": True}}, {}),
        (
            {"configMap": {"name": "settings", "optional": True, "items": [{"key": "none", "path": "n"}]}},
            {},
        ),
        (
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"labels": File(b'app="x"', 0o644)},
        ),
        (
            {
                "projected": {
                    "defaultMode": 0o400,
                    "sources": [
                        {"configMap": {"name": "settings", "items": [{"key": "b.yaml", "path": "b"}]}},
                        {"secret": {"name": "keys"}},
                        {"downwardAPI": {"items": [{"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}}]}},
                    ],
                }
            },
            {"b": File(b"b: 2", 0o400), "id": File(b"private", 0o400), "ip": File(b"10.244.0.7", 0o400)},
        ),
    ],
)
def test_files_of_volumes_that_show_objects(volume: dict[str, Any], files: dict[str, File]) -> None:
    assert files_of(volume) == files


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "gone"}}, 'volume "v" : configmap "gone" not found'),
        ({"secret": {"secretName": "gone"}}, 'volume "v" : secret "gone" not found'),
        (
            {"configMap": {"name": "settings", "items": [{"key": "none", "path": "n"}]}},
            "references non-existent config key: none",
        ),
        ({"configMap": {"name": "settings", "items": [{"key": "a.yaml", "path": "../a"}]}}, "is outside the volume"),
    ],
)
def test_what_is_missing_is_named(volume: dict[str, Any], message: str) -> None:
    with pytest.raises(VolumeError, match=message):
        files_of(volume)


def test_references_name_the_objects_to_fetch() -> None:
    pod = make_pod(
        {"name": "a", "configMap": {"name": "one"}},
        {"name": "b", "secret": {"secretName": "two"}},
        {"name": "c", "projected": {"sources": [{"secret": {"name": "three"}}]}},
        {"name": "d", "emptyDir": {}},
    )
    expected = {Reference("configmap", "one"), Reference("secret", "two"), Reference("secret", "three")}
    assert volume_references(pod) == expected


def test_a_directory_comes_to_hold_exactly_its_files(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1", 0o644), "deep/b": File(b"2", 0o600), "same": File(b"s", 0o644)})
    untouched = (tmp_path / "same").stat().st_ino
    write_files(tmp_path, {"a": File(b"3", 0o644), "c": File(b"4", 0o555), "same": File(b"s", 0o644)})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"3", "c": b"4", "same": b"s"}
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o555
    assert (tmp_path / "same").stat().st_ino == untouched


@pytest.fixture
def volumes(tmp_path: Path) -> VolumeDirectory:
    return VolumeDirectory(tmp_path / "volumes", tmp_path / "claims")


def test_mounts(volumes: VolumeDirectory, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    pod = make_pod(
        {"name": "scratch", "emptyDir": {}},
        {"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "host", "hostPath": {"path": str(tmp_path / "host")}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "data"}},
        main=[
            {"name": "scratch", "mountPath": "/scratch"},
            {"name": "scratch", "mountPath": "/runs", "subPathExpr": "runs/$(POD)", "readOnly": False},
            {"name": "fast", "mountPath": "/dev/shm"},
            {"name": "settings", "mountPath": "/etc/a.yaml", "subPath": "a.yaml"},
            {"name": "host", "mountPath": "/host", "readOnly": True},
            {"name": "claim", "mountPath": "/claim"},
        ],
    )
    volumes.prepare(pod, SOURCES, HERE)
    root = tmp_path / "volumes"
    assert volumes.mounts(pod, pod["spec"]["containers"][0], {"POD": "p"}) == [
        Mount("/scratch", str(root / "scratch")),
        Mount("/runs", str(root / "scratch/runs/p")),
        Mount("/dev/shm", size=2**20),
        Mount("/etc/a.yaml", str(root / "settings/a.yaml"), read_only=True),
        Mount("/host", str(tmp_path / "host"), read_only=True),
        Mount("/claim", str(tmp_path / "claims/team/data")),
    ]
    assert (root / "scratch/runs/p").is_dir()
    volumes.remove()
    assert not root.exists()
    assert (tmp_path / "claims/team/data").is_dir()


def test_memory_that_containers_share_is_a_directory(volumes: VolumeDirectory, tmp_path: Path) -> None:
    mount = {"name": "fast", "mountPath": "/fast"}
    pod = make_pod({"name": "fast", "emptyDir": {"medium": "Memory"}}, a=[mount], b=[mount])
    volumes.prepare(pod, {}, HERE)
    expected = [Mount("/fast", str(tmp_path / "volumes/fast"))]
    assert [volumes.mounts(pod, one, {}) for one in pod["spec"]["containers"]] == [expected, expected]


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"nfs": {"server": "s", "path": "/"}}, "nfs volumes cannot be mounted on a local node"),
        ({"hostPath": {"path": "/nowhere/at/all", "type": "Directory"}}, "is not a Directory"),
    ],
)
def test_volumes_that_cannot_be_had(volumes: VolumeDirectory, volume: dict[str, Any], message: str) -> None:
    with pytest.raises(VolumeError, match=message):
        volumes.prepare(make_pod({"name": "v", **volume}), {}, HERE)


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ({"name": "other", "mountPath": "/x"}, 'volume "other" of container "main" is not defined'),
        ({"name": "v", "mountPath": "/x", "subPath": "../.."}, "is outside the volume"),
        ({"name": "v", "mountPath": "/x", "subPath": "none"}, 'volume "v" has nothing at none'),
    ],
)
def test_mounts_that_cannot_be_had(volumes: VolumeDirectory, mount: dict[str, Any], message: str) -> None:
    pod = make_pod({"name": "v", "configMap": {"name": "settings"}}, main=[mount])
    volumes.prepare(pod, SOURCES, HERE)
    with pytest.raises(VolumeError, match=message):
        volumes.mounts(pod, pod["spec"]["containers"][0], {})


@pytest.mark.parametrize("kind", ["DirectoryOrCreate", "FileOrCreate", ""])
def test_host_paths_are_made_if_asked_for(volumes: VolumeDirectory, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "made"
    volumes.prepare(make_pod({"name": "v", "hostPath": {"path": str(path), "type": kind}}), {}, HERE)
    assert path.is_file() if kind == "FileOrCreate" else path.is_dir()
