"""Positions of fields in YAML and JSON: what the text shows, whatever its form."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from trainop.run.check import find_jobs
from trainop.run.documents import BadInputError, read

HEAD = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\n"


def find(tmp_path: Path, text: str | bytes, path: str, index: int = 0) -> str:
    file = tmp_path / "f.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read([file])[index].complain(f"{path}: words").removeprefix(f"{file}:").partition(" ")[0][:-1]


PLAIN = (
    HEAD
    + """spec:
  roles:
    Worker:
      replicas: 2
      list:
      - name: x
      -   name: y
        # a comment
          inner: [1, {a: 2}]
  labels:
    "a.b/c": 1
    a.b/c.d: 2
    a: {b/c: 3}
    'x[0]': 4
    'x: y': 5
"""
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("spec", "4:1"),
        ("spec.roles.Worker.replicas", "7:7"),
        ("spec.roles[Worker].replicas", "7:7"),
        ("spec.roles.Worker.absent", "6:5"),
        ("spec.roles.Worker.absent.deeper[3].x", "6:5"),
        ("spec.roles.Worker.list[0].name", "9:9"),
        ("spec.roles.Worker.list[1].name", "10:11"),
        ("spec.roles.Worker.list[1]", "10:11"),
        ("spec.roles.Worker.list[1].inner[1].a", "12:23"),
        ("spec.roles.Worker.list[7].name", "8:7"),
        ("spec.labels.a.b/c", "14:5"),
        ("spec.labels[a.b/c]", "14:5"),
        ("spec.labels.a.b/c.d", "15:5"),
        ("spec.labels.x[0]", "17:5"),
        ("spec.labels.x: y", "18:5"),
        ("nothing", "1:1"),
        ("", "1:1"),
        ("a sentence about all", "1:1"),
    ],
)
def test_a_path_leads_to_its_key(tmp_path: Path, path: str, expected: str):
    assert find(tmp_path, PLAIN, path) == expected


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
def test_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path, end: str, mark: str):
    text = mark + PLAIN.replace("\n", end)
    assert find(tmp_path, text, "spec.roles.Worker.list[1].inner[1].a") == "12:23"
    assert find(tmp_path, text, "apiVersion") == "1:1"


def test_anchors_and_merge_keys_lead_to_where_the_field_is_written(tmp_path: Path):
    text = HEAD + "spec:\n  base: &b\n    image: i\n    name: n\n  one:\n    <<: *b\n    name: m\n  two: *b\n"
    assert find(tmp_path, text, "spec.one.image") == "6:5"
    assert find(tmp_path, text, "spec.one.name") == "10:5"
    assert find(tmp_path, text, "spec.two.image") == "6:5"
    assert find(tmp_path, text, "spec.two.absent") == "11:3"


def test_each_document_and_each_item_of_a_list_has_its_own(tmp_path: Path):
    item = "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: b\n  spec: {x: 1}\n"
    text = HEAD + "spec: {x: 1}\n---\napiVersion: v1\nkind: List\nitems:\n" + item + item
    assert find(tmp_path, text, "spec.x", 0) == "4:8"
    assert find(tmp_path, text, "spec.x", 1) == "13:10"
    assert find(tmp_path, text, "spec.x", 2) == "18:10"


def test_json_has_positions_also_with_tabs(tmp_path: Path):
    value = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a/b": "tab\there"}}}
    text = json.dumps(value, indent="\t")
    assert find(tmp_path, text, "metadata.labels.a/b") == "7:4"
    assert read([tmp_path / "f.yaml"])[0].raw == value


def test_wide_characters_count_as_one(tmp_path: Path):
    assert find(tmp_path, HEAD + 'spec: {"ä😀": 1, b: 2}\n', "spec.b") == "4:17"


def test_a_name_that_the_message_truncates_is_found(tmp_path: Path):
    name = "x" * 300
    (tmp_path / "f.yaml").write_text(
        HEAD + f"spec:\n  pytorchReplicaSpecs:\n    Master:\n      template:\n        spec:\n          {name}: 1\n"
        "          containers: [{name: pytorch, image: i}]\n"
    )
    with pytest.raises(BadInputError, match=r"f.yaml:9:11: error: spec.*x{16}.*: unknown field"):
        find_jobs(read([tmp_path / "f.yaml"]))


def test_all_errors_of_all_kinds_of_checks_have_their_place(tmp_path: Path):
    """Validation of the kind, the CRD's schema, unknown fields of job and template, types of Kubernetes."""
    (tmp_path / "f.yaml").write_text(
        HEAD
        + """spec:
  elasticPolicys: {}
  runPolicy:
    cleanPodPolicy: 7
  pytorchReplicaSpecs:
    Master:
      replicas: 2
      template:
        spec:
          containers:
          - name: pytorch
            image: i
            comand: [x]
            resources:
              limits:
                cpu: lots
    Worker: {replicas: 1}
"""
    )
    with pytest.raises(BadInputError) as refused:
        find_jobs(read([tmp_path / "f.yaml"]))
    said = [
        line.split(": ")[0].rpartition("f.yaml:")[2] + " " + line.split(": ")[2]
        for line in str(refused.value).splitlines()
    ]
    roles = "spec.pytorchReplicaSpecs"
    assert {
        "5:3 spec.elasticPolicys",
        "7:5 spec.runPolicy.cleanPodPolicy",
        f"10:7 {roles}[Master].replicas",
        f"16:13 {roles}.Master.template.spec.containers[0].comand",
        f"19:17 {roles}.Master.template.spec.containers[0].resources.limits.cpu",
    } <= set(said), said
    assert any(each.startswith("20:5 spec.pytorchReplicaSpecs") for each in said), said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]\n", "f.yaml:1:4: error: an anchor contains an alias of itself"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
            "error: aliases expand to more than 1,000,000 values",
        ),
        ("[" * 100_000, "f.yaml: nested too deeply"),
        ("{" * 100_000, "f.yaml: nested too deeply"),
        ("[" * 100 + "a: 1\na: 2", "error: not valid YAML"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "f.yaml:4:3: error: not valid YAML: duplicate key 'c'"),
        ("a: 1\nb:\n\t- c\n", "f.yaml:3:1: error: not valid YAML"),
        ("a: 1\n? [x]\n: 2\n", "f.yaml:2:3: error: not valid YAML: a key is a list or a mapping"),
        ("a: {? {x: 1} : 2}\n", "f.yaml:1:7: error: not valid YAML: a key is a list or a mapping"),
        ("- " * 100_000, "f.yaml: nested too deeply"),
    ],
    ids=["cycle", "bomb", "lists", "maps", "half", "duplicate", "tab", "list-key", "map-key", "items"],
)
def test_rude_files_are_one_clear_error(tmp_path: Path, text: str, message: str):
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(BadInputError) as refused:
        read([tmp_path / "f.yaml"])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_positions_of_many_errors_cost_less_than_reading(tmp_path: Path):
    """Each is a walk down its path, whatever the size of the object."""
    count = 4000
    env = "".join(f"    - {{name: v{n}, value: x}}\n" for n in range(count))
    file = tmp_path / "f.yaml"
    file.write_text(HEAD + "spec:\n  env:\n" + env)
    begin = time.process_time()
    (document,) = read([file])
    reading = time.process_time() - begin
    begin = time.process_time()
    lines = [document.complain(f"spec.env[{n}].value: words") for n in range(count)]
    assert time.process_time() - begin < reading
    assert lines[-1].startswith(f"{file}:{count + 5}:")
    assert yaml.safe_load(file.read_text())["spec"]["env"][-1]["name"] == f"v{count - 1}"
