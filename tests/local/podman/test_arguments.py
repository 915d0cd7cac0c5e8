"""What podman is told, and in which words: pure functions, for which no podman is needed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainop.local.node.podman.arguments import Place, mount_argument, own_environment, run_arguments
from trainop.local.node.podman.references import default_policy, full_name
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.running import SandboxError
from trainop.local.node.sandbox.sandbox import Command

ID = "0123456789abcdef" * 4
POD: Any = {"metadata": {"name": "pod-1", "uid": "u"}, "spec": {}}
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="="), min_size=1, max_size=20)
PATHS = TEXT.map(lambda text: f"/{text}")


def arguments(container: Any = None, pod: Any = None, user: str = "", **command: Any) -> list[str]:
    given = {"argv": [], "environment": {}, "directory": "", **command}
    place = Place("name", "host", {"label": "x"}, ("GPU-1", "GPU-2"), user)
    return run_arguments(pod or POD, container or {"name": "main"}, Command(**given, image=ID), place)


def options(*args: Any, **more: Any) -> list[str]:
    found = arguments(*args, **more)
    return found[2 : found.index(ID)]


@given(st.lists(TEXT, max_size=4), st.lists(TEXT, max_size=4), st.dictionaries(NAMES, TEXT, max_size=4), TEXT)
def test_no_text_of_a_manifest_becomes_an_option(entry: Any, args: Any, environment: Any, directory: str) -> None:
    """Each word before the image is an option with its value; after it are the words of the container."""
    found = arguments(argv=[*entry, *args], entry=len(entry), environment=environment, directory=directory)
    at = found.index(ID)
    assert found[1] == "run"
    assert all(re.match(r"--[a-z-]+(=|$)", each) for each in [found[0], *found[2:at]])
    assert found[at + 1 :] == args
    entries = [each.removeprefix("--entrypoint=") for each in found[:at] if each.startswith("--entrypoint=")]
    assert [json.loads(each) for each in entries] == ([entry] if entry else [])


@given(st.dictionaries(NAMES, TEXT, max_size=6))
def test_each_variable_is_passed_once_and_most_of_them_hidden(environment: dict[str, str]) -> None:
    words = [each.removeprefix("--env=") for each in options(environment=environment) if each.startswith("--env=")]
    hidden = own_environment(environment)
    read = {}
    for word in words:  # as podman-run(1) describes --env
        name, equals, value = word.partition("=")
        assert equals or not name.endswith("*")
        read[name] = value if equals else hidden[name]
    assert read == environment


@pytest.mark.parametrize(
    "name", ["TOKEN", "GOOGLE_API_KEY", "DOCKER_PASSWORD", "AWS_SECRET", "PASSWORD", "https_proxy", "PATHS"]
)
def test_what_may_be_a_secret_is_in_no_argument(name: str) -> None:
    assert f"--env={name}" in options(environment={name: "secret"})
    assert own_environment({name: "secret"}) == {name: "secret"}


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "LD_PRELOAD", "CONTAINERS_CONF", "XDG_RUNTIME_DIR", "GODEBUG", "ALL*"]
)
def test_what_would_change_podman_itself_is_not_in_its_environment(name: str) -> None:
    assert f"--env={name}=value" in options(environment={name: "value"})
    assert own_environment({name: "value"}) == {}


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("a=b", "x"), ("a", "x\0y"), ("a\0", "")])
def test_what_is_no_variable_is_refused(name: str, value: str) -> None:
    with pytest.raises(SandboxError, match="cannot be set"):
        arguments(environment={name: value})


def read_mount(argument: str) -> tuple[str, str, bool]:
    """Source, target and whether it is read-only, as podman-run(1) describes the options (and podman 4 splits)."""
    option, _, text = argument.partition("=")
    if option == "--volume":
        source, target, *more = text.split(":")
        assert more in ([], ["ro"])
        return source, target, bool(more)
    assert option == "--mount"
    fields = dict(each.partition("=")[::2] for each in text.split(","))
    assert fields.pop("type") == "bind"
    read_only = fields.pop("ro", None) is not None
    return fields.pop("src"), fields.pop("dst"), read_only


@given(PATHS, PATHS, st.booleans())
def test_a_mount_is_what_was_meant_or_refused(source: str, target: str, read_only: bool) -> None:
    mount = Mount(target, source, read_only=read_only)
    if re.search(r"[:\\]", source + target) and re.search(r'[,"\n]', source + target):
        with pytest.raises(SandboxError, match="podman cannot mount"):
            mount_argument(mount)
    else:
        assert read_mount(mount_argument(mount)) == (source, target, read_only)


def test_a_tmpfs_has_its_size() -> None:
    assert mount_argument(Mount("/a", size=5)) == "--mount=type=tmpfs,dst=/a,tmpfs-mode=1777,notmpcopyup,tmpfs-size=5"
    with pytest.raises(SandboxError, match="comma"):
        mount_argument(Mount("/a,size=9"))


@pytest.mark.parametrize(
    ("pod", "own", "user", "expected"),
    [
        ({}, {}, "", []),
        ({"runAsUser": 5}, {}, "", ["--user=5"]),
        ({"runAsUser": 5, "runAsGroup": 6}, {"runAsUser": 0}, "", ["--user=0:6"]),
        ({"runAsGroup": 6}, {}, "someone:else", ["--user=someone:6"]),
        ({"runAsGroup": 6}, {}, "", ["--user=0:6"]),
        ({"runAsNonRoot": True}, {}, "1000", []),
        ({"supplementalGroups": [3], "fsGroup": 4}, {}, "", ["--group-add=3", "--group-add=4"]),
        ({}, {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}, "", ["--cap-drop=ALL", "--cap-add=IPC_LOCK"]),
        ({}, {"readOnlyRootFilesystem": True}, "", ["--read-only", "--read-only-tmpfs=false"]),
        ({}, {"allowPrivilegeEscalation": False}, "", ["--security-opt=no-new-privileges"]),
    ],
)
def test_the_security_context(pod: Any, own: Any, user: str, expected: list[str]) -> None:
    without = options(user=user)
    found = options({"name": "main", "securityContext": own}, {**POD, "spec": {"securityContext": pod}}, user=user)
    assert [each for each in found if each not in without] == expected


@pytest.mark.parametrize(
    ("own", "user"),
    [({"runAsUser": 0}, "1000"), ({}, ""), ({}, "root"), ({}, "0"), ({}, "someone"), ({}, "00:5")],
)
def test_run_as_non_root_fails_closed(own: Any, user: str) -> None:
    with pytest.raises(SandboxError, match="runAsNonRoot"):
        arguments({"name": "main", "securityContext": {"runAsNonRoot": True, **own}}, user=user)


def test_limits_devices_and_the_name_of_the_host() -> None:
    found = options({"name": "main", "resources": {"limits": {"memory": "1Mi", "cpu": "2"}}})
    assert {"--memory=1048576b", "--memory-swap=1048576b", "--hostname=pod-1", "--name=name", "--label=label=x"} <= {
        *found
    }
    assert [each for each in found if "device" in each] == [
        "--device=nvidia.com/gpu=GPU-1",
        "--device=nvidia.com/gpu=GPU-2",
    ]


@pytest.mark.parametrize(
    ("image", "full", "policy"),
    [
        ("python", "docker.io/library/python:latest", "Always"),
        ("python:3.12", "docker.io/library/python:3.12", "IfNotPresent"),
        ("kubeflow/mpi:1", "docker.io/kubeflow/mpi:1", "IfNotPresent"),
        ("docker.io/python:1", "docker.io/library/python:1", "IfNotPresent"),
        ("localhost/mine", "localhost/mine:latest", "Always"),
        ("localhost:5000/a/b:latest", "localhost:5000/a/b:latest", "Always"),
        ("ghcr.io/a/b:v1.0_x", "ghcr.io/a/b:v1.0_x", "IfNotPresent"),
        (f"quay.io/a/b@sha256:{ID}", f"quay.io/a/b@sha256:{ID}", "IfNotPresent"),
        (f"a:latest@sha256:{ID}", f"docker.io/library/a:latest@sha256:{ID}", "IfNotPresent"),
        ("[::1]:5000/a", "[::1]:5000/a:latest", "Always"),
    ],
)
def test_names_of_images(image: str, full: str, policy: str) -> None:
    assert (full_name(image), default_policy(image)) == (full, policy)
    assert full_name(full) == full


@pytest.mark.parametrize(
    "image",
    ["", "-a", "--help", "A", "a b", "a:", "a:b:c", "a/", "/a", "a//b", "a\n", "a@b", "http://a", "é", "a" * 300],
)
def test_what_is_no_name_of_an_image(image: str) -> None:
    with pytest.raises(ValueError, match="invalid reference format"):
        full_name(image)


@given(st.text(max_size=40))
def test_a_name_never_begins_like_an_option(text: str) -> None:
    try:
        found = full_name(text)
    except ValueError:
        return
    assert re.match(r"[a-zA-Z0-9\[]", found)
    assert not re.search(r"[\s,=]", found)
