"""Files are read by libyaml where PyYAML has it, and by PyYAML alone elsewhere: what is read must not differ."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainop.run import documents
from trainop.run.documents import BadInputError, _choose_loader, _documents, _load, _Loader, read
from trainop.run.positions import ExpansionError, place_of

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("examples", "manifests", "tests") for path in (ROOT / folder).rglob("*.yaml"))
ODD = [
    "",
    "# only a comment\n",
    "---\n---\na: 1\n...\n---\nb: 2\n",
    "\ufeffa: 1\r\nb: [1, 2]\r\n",
    "a: |\n  x\n   y\n\nb: >-\n  x\n  y\n\n  z\n",
    "a: \"x\\u00e9\\n \\\n  y\"\nb: 'it''s'\n",
    "base: &base {x: 1, y: 2}\nuse: {<<: *base, y: 3}\n",
    "a: &x [1]\nb: *x\n",
    "a: 2026-11-25\nb: 2026-11-25T12:00:00Z\nc: 0x1f\nd: 1e3\ne: 1_000\nf: 0o17\ng: 017\nh: yes\ni: ~\nj: .inf\n",
    "a: !!str 1\nb: !!binary aGk=\nc: !!set {x}\n",
    '{"a": [1, {"b": "\\ud83d\\ude00"}], "c": null}\n',
    "a\u2028b: 1\n",
    "a: x\ufeffy\n",
    "a:\tb\nc: [x?, y]\n",
    "ä😀: ü\n",
    "a: [x: 1, y, {z}]\n",
    "? a\n: b\n",
]
MARKS = [
    "[",
    "]",
    "{",
    "}",
    ": ",
    "- ",
    ",",
    "?",
    "&a ",
    "*a",
    "|\n",
    ">",
    "'",
    '"',
    "%",
    "@",
    "#",
    "\n",
    "\n  ",
    "---\n",
]

needs_libyaml = pytest.mark.skipif(not yaml.__with_libyaml__, reason="this PyYAML was built without libyaml")


def describe(node: yaml.Node, seen: set[int]) -> Any:
    """Everything that is read of a node: its tag, place and content. An anchor is described once, and an absent value
    has no place."""
    if id(node) in seen:
        return "alias"
    seen.add(id(node))
    content: Any = node.value
    if isinstance(node, yaml.MappingNode):
        content = [(describe(key, seen), describe(value, seen)) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        content = [describe(item, seen) for item in node.value]
    return node.tag, place_of(node) if content != "" else None, content


def outcome(load: Callable[[str], list[tuple[yaml.Node, Any]]], text: str) -> Any:
    """The documents, or None for an error."""
    try:
        # Nodes are described after their value was made, which resolves merge keys.
        return [(repr(value), describe(node, set())) for node, value in load(text)]
    except (yaml.YAMLError, ExpansionError, RecursionError, ValueError):
        return None


def slowly(text: str) -> list[tuple[yaml.Node, Any]]:
    return list(_documents(_Loader(text)))


def refused_by_pyyaml(text: str) -> bool:
    """What libyaml accepts beyond PyYAML: tabs between words, and `?` at the end of a word in a list."""
    return "\t" in text or "?" in text


@needs_libyaml
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_file_of_the_project_is_read_alike(path: Path):
    text = path.read_text(encoding="utf-8")
    assert (found := outcome(_load, text)) == outcome(slowly, text)
    assert found or "{{" in text or path.stat().st_size == 0


@needs_libyaml
@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_files_are_read_alike(text: str):
    slow = outcome(slowly, text)
    assert outcome(_load, text) == slow or (slow is None and refused_by_pyyaml(text))


@needs_libyaml
def test_damaged_files_are_read_alike_or_refused():
    rng, both = random.Random(7), 0
    texts = [text for path in FILES if len(text := path.read_text(encoding="utf-8")) < 2000]
    for _ in range(1500):
        text = rng.choice([*texts, *ODD])
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(text) + 1)
            text = text[:place] + rng.choice(MARKS) + text[place + rng.randint(0, 1) :]
        fast, slow = outcome(_load, text), outcome(slowly, text)
        both += slow is not None
        assert fast == slow or (slow is None and refused_by_pyyaml(text)), text
    assert both > 100


@pytest.mark.parametrize("with_libyaml", [pytest.param(True, marks=needs_libyaml), False])
def test_errors_have_the_same_words_with_and_without_libyaml(
    with_libyaml: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(documents, "_fast_loader", _choose_loader() if with_libyaml else _Loader)
    said = []
    for text in ("a: [", "a: b: c", "a: 'x", "\tx", "a: *b", "a: !x 1", "a: 1\na: 2", "a: \x01", "@"):
        (tmp_path / "f.yaml").write_text(text)
        with pytest.raises(BadInputError) as refused:
            read([tmp_path / "f.yaml"])
        said.append(str(refused.value).rpartition("not valid YAML: ")[2])
    assert said == [
        "expected the node content, but found '<stream end>'",
        "mapping values are not allowed here",
        "found unexpected end of stream",
        "found character '\\t' that cannot start any token",
        "found undefined alias 'b'",
        "could not determine a constructor for the tag '!x'",
        "duplicate key 'a'",
        'unacceptable character #x0001: special characters are not allowed\n  in "<unicode string>", position 3',
        "found character '@' that cannot start any token",
    ]


@needs_libyaml
def test_a_large_file_is_read_in_a_fraction_of_the_time():
    text = "a:\n" + "".join(f"- name: n{number}\n  value: v\n" for number in range(5000))

    def seconds(loader: Callable[[str], Any]) -> float:
        start = time.process_time()
        list(_documents(loader(text)))
        return time.process_time() - start

    assert seconds(documents._fast_loader) < 0.7 * seconds(_Loader)
