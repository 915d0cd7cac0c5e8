"""Tables: cells and columns as recorded from a kube-apiserver 1.37.2."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.local.semantics.recordings import recorded
from trainop.local.api.printing.jsonpath import compile_path
from trainop.local.api.printing.table import columns_of_crd, columns_of_kind, table
from trainop.local.api.schema.durations import age, human_duration

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
TABLES = {recording["kind"]: recording for recording in recorded("tables")}
ROWS = [(kind, row) for kind, recording in TABLES.items() for row in recording["rows"]]


@pytest.mark.parametrize("kind", TABLES)
def test_columns(kind: str):
    columns = columns_of_kind(TABLES[kind]["group"], kind)
    mine = [{"name": c.name, "type": c.type, "format": c.format, "priority": c.priority} for c in columns]
    assert mine == TABLES[kind]["columns"]


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[f"{k}-{r['object']['metadata']['name']}" for k, r in ROWS])
def test_cells(kind: str, row: Any):
    columns = columns_of_kind(TABLES[kind]["group"], kind)
    reported = dict(zip((column.name for column in columns), row["cells"], strict=True))
    mine = {column.name: column.cell(row["object"], NOW) for column in columns}
    # Cells that depend on the clock of the recording cannot be compared; the test below checks them.
    clocked = {
        name for name, cell in reported.items() if name in {"Age", "Last Seen", "First Seen"} or " ago)" in str(cell)
    }
    assert {name: cell for name, cell in mine.items() if name not in clocked} == {
        name: cell for name, cell in reported.items() if name not in clocked
    }


def test_ages_of_restarts_and_events():
    pod = TABLES["Pod"]["rows"][3]["object"]
    restarts = {c.name: c.cell(pod, datetime(2026, 1, 1, 0, 5, 30, tzinfo=UTC)) for c in columns_of_kind("", "Pod")}
    assert restarts["Restarts"] == "3 (5m30s ago)"
    first, second = (row["object"] for row in TABLES["Event"]["rows"])
    seen = {c.name: c.cell(first, datetime(2026, 2, 2, tzinfo=UTC)) for c in columns_of_kind("", "Event")}
    assert (seen["Last Seen"], seen["First Seen"]) == ("24h", "32d")
    seen = {c.name: c.cell(second, datetime(2026, 3, 2, tzinfo=UTC)) for c in columns_of_kind("", "Event")}
    assert (seen["Last Seen"], seen["First Seen"]) == ("24h", "60d")
    assert columns_of_kind("", "Event")[0].cell({}, NOW) == "<unknown>"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1.5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600, "8h"),
        (48 * 3600 - 1, "47h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400, "8d"),
        (400 * 86400, "400d"),
        (730 * 86400, "2y"),
        (731 * 86400, "2y1d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_durations(seconds: float, text: str):
    assert human_duration(seconds) == text


def test_ages():
    assert age("2026-11-21T02:59:00Z", NOW) == "60s"
    assert age("2026-11-21T02:59:00.5+00:00", NOW) == "59s"
    assert age(None, NOW) == "<unknown>"
    assert age("soon", NOW) == "<invalid>"


VERSION = {
    "additionalPrinterColumns": [
        {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status', "priority": 1},
        {"name": "Count", "type": "integer", "jsonPath": ".spec.n", "description": "How many."},
        {"name": "Share", "type": "number", "jsonPath": ".spec.f"},
        {"name": "On", "type": "boolean", "jsonPath": ".spec.on"},
        {"name": "Map", "type": "string", "jsonPath": ".spec.map"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
}


def test_printer_columns():
    item = {
        "metadata": {"name": "j", "creationTimestamp": (NOW - timedelta(hours=1)).isoformat()},
        "spec": {"n": 3, "f": 1, "on": True, "map": {"a": [1]}},
        "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Running", "status": "True"}]},
    }
    shown = table(columns_of_crd(VERSION), [item, {"metadata": {"name": "k"}}], now=NOW)
    assert shown["rows"][0]["cells"] == ["j", "Running", "False", 3, 1.0, True, '{"a":[1]}', "60m"]
    assert shown["rows"][1]["cells"] == ["k", None, None, None, None, None, None, None]
    assert shown["columnDefinitions"][2]["priority"] == 1
    assert shown["columnDefinitions"][3]["description"] == "How many."
    path = "Custom resource definition column (in JSONPath format): .spec.f"
    assert shown["columnDefinitions"][4]["description"] == path


def test_a_value_of_another_type_is_not_shown():
    item = {"metadata": {"name": "j", "creationTimestamp": 5}, "spec": {"n": "3", "f": True, "on": "yes"}}
    assert table(columns_of_crd(VERSION), [item], now=NOW)["rows"][0]["cells"][3:6] == [None, None, None]


def test_a_crd_without_columns_shows_the_age():
    cells = table(columns_of_crd({}), [{"metadata": {"name": "j"}}], now=NOW)["rows"][0]["cells"]
    assert cells == ["j", "<unknown>"]


@pytest.mark.parametrize(
    ("include", "shown"),
    [
        ("None", None),
        ("Metadata", {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "a"}}),
        ("Object", {"metadata": {"name": "a"}, "data": {}}),
    ],
)
def test_rows_carry_what_was_asked_for(include: str, shown: Any):
    item: dict[str, Any] = {"metadata": {"name": "a"}, "data": {}}
    made = table(columns_of_kind("", "ConfigMap"), [item], now=NOW, include_object=include, list_metadata={"x": "y"})
    assert made["rows"][0].get("object") == shown
    assert made["metadata"] == {"x": "y"}


DOCUMENT = {
    "a": {"b.c": 1, "d": [{"e": 1, "n": "x"}, {"e": 2, "n": "y"}, {"e": "z"}]},
    "e": 5,
    "w": None,
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".e", [5]),
        ("{.e}", [5]),
        ("$.e", [5]),
        (".a['b.c']", [1]),
        (".a.b\\.c", [1]),
        (".a.d[0].e", [1]),
        (".a.d[-1].e", ["z"]),
        (".a.d[-1:].e", ["z"]),
        (".a.d[0:2].e", [1, 2]),
        (".a.d[0,2].e", [1, "z"]),
        (".a.d[9].e", []),
        (".a.d[*].e", [1, 2, "z"]),
        (".a.d.*.e", [1, 2, "z"]),
        ("..e", [5, 1, 2, "z"]),
        ('.a.d[?(@.n=="y")].e', [2]),
        (".a.d[?(@.n=='y')].e", [2]),
        (".a.d[?(@.n)].e", [1, 2]),
        (".a.d[?(@.e>1)].n", ["y"]),
        (".a.d[?(@.e != 1)].e", [2, "z"]),
        (".w", [None]),
        (".missing.deep", []),
        (".", [DOCUMENT]),
    ],
)
def test_json_paths(path: str, values: list[Any]):
    assert compile_path(path)(DOCUMENT) == values


@pytest.mark.parametrize("path", [".a[", ".a[?(@.b==c)]", ".a]b"])
def test_json_paths_that_cannot_be_read(path: str):
    with pytest.raises(ValueError, match="unrecognized"):
        compile_path(path)
