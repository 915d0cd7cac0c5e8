"""Reading YAML files of users, and the positions in error messages."""

from pathlib import Path

import pytest

from trainop.run.documents import BadInputError, read
from trainop.runtime.objects.metadata import Key

JOB = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\n"


def write(folder: Path, text: str | bytes, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_objects_know_their_place(tmp_path: Path):
    path = write(
        tmp_path,
        f"# a comment\n---\n{JOB}---\n---\nkind: ConfigMap\napiVersion: v1\nmetadata:\n  name: c\n  namespace: n\n",
    )
    first, second = read([path])
    assert (first.api_version, first.kind, first.key, first.where) == (
        "kubeflow.org/v1",
        "PyTorchJob",
        Key("default", "a"),
        f"{path}:3",
    )
    assert (second.kind, second.key) == ("ConfigMap", Key("n", "c"))


def test_a_list_stands_for_its_items(tmp_path: Path):
    path = write(tmp_path, "kind: List\napiVersion: v1\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p}}\n")
    assert [document.kind for document in read([path])] == ["Pod"]


def test_a_folder_stands_for_its_files_in_order(tmp_path: Path):
    write(tmp_path, JOB.replace("name: a", "name: second"), "b.yml")
    write(tmp_path, '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first"}}', "a.json")
    write(tmp_path, "not for us", "c.txt")
    assert [document.key.name for document in read([tmp_path])] == ["first", "second"]


def test_dates_stay_text(tmp_path: Path):
    (document,) = read([write(tmp_path, JOB + "spec: {day: 2026-01-02}")])
    assert document.raw["spec"]["day"] == "2026-01-02"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("a: [", "{path}:1:5: error: not valid YAML: expected the node content, but found '<stream end>'"),
        ("a: 1\na: 2", "{path}:2:1: error: not valid YAML: duplicate key 'a'"),
        ("\tx", "{path}:1:1: error: not valid YAML: found character '\\t' that cannot start any token"),
        (b"\xff\xfe\x00", "{path}: not valid YAML"),
        (b"a: \xe9", "{path}: not UTF-8 text (byte 3)"),
        ("", "{path}: empty; expected objects with apiVersion, kind, metadata and spec"),
        ("# nothing", "{path}: empty; expected objects with apiVersion, kind, metadata and spec"),
        ("just text", "{path}:1:1: error: expected an object with apiVersion and kind, found a str"),
        ("kind: X", "{path}:1:1: error: apiVersion is missing; expected for example kubeflow.org/v1"),
        ("apiVersion: v1", "{path}:1:1: error: kind is missing; expected for example PyTorchJob"),
        (
            "apiVersion: v1\nkind: Pod",
            "{path}:1:1: error: metadata.name is missing or not a string; expected a name such as pod",
        ),
        (JOB.replace("name: a", "name: 7"), "{path}:3:12: error: metadata.name is missing or not a string"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str | bytes, reported: str):
    path = write(tmp_path, text)
    with pytest.raises(BadInputError) as caught:
        read([path])
    message = str(caught.value)
    if not isinstance(text, bytes) or b"\xff" not in text:
        assert message.startswith(reported.format(path=path))
    assert message.startswith(str(path))
    assert "\n" not in message


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(BadInputError, match=r"no.yaml: No such file or directory"):
        read([tmp_path / "no.yaml"])


def test_a_folder_without_manifests(tmp_path: Path):
    with pytest.raises(BadInputError, match=r"no .yaml, .yml or .json file in this folder"):
        read([tmp_path])
