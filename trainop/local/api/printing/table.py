"""`meta.k8s.io/v1` Tables, which kubectl requests with `Accept: application/json;as=Table;v=v1;g=meta.k8s.io`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec

from trainop.local.api.printing.columns import COLUMNS_BY_KIND, DEFAULT_COLUMNS, Column, Columns, age_of, name_of
from trainop.local.api.printing.jsonpath import compile_path
from trainop.runtime import Json

__all__ = ["Column", "Columns", "columns_of_crd", "columns_of_kind", "table"]


def columns_of_kind(group: str, kind: str) -> Columns:
    """The columns of a built-in kind; NAME and CREATED AT for kinds without columns of their own."""
    return COLUMNS_BY_KIND.get((group, kind), DEFAULT_COLUMNS)


def columns_of_crd(version: Json) -> Columns:
    """The columns of one entry of a CRD's `spec.versions`, from its `additionalPrinterColumns`.

    Raises `ValueError` for an invalid JSONPath. A CRD without columns has NAME and AGE.
    """
    printer_columns = version.get("additionalPrinterColumns")
    if not printer_columns:
        return (Column("Name", name_of, format="name"), Column("Age", age_of, type="date"))
    return (Column("Name", name_of, format="name"), *(_printer_column(column) for column in printer_columns))


def _printer_column(column: Json) -> Column:
    path, type_ = column["jsonPath"], column["type"]
    return Column(
        column["name"],
        _cell(path, type_),
        type=type_,
        format=column.get("format", ""),
        description=column.get("description") or f"Custom resource definition column (in JSONPath format): {path}",
        priority=column.get("priority", 0),
    )


def _cell(path: str, type_: str) -> Callable[[Json, datetime], Any]:
    """A cell function with the first value at the path; null if it is missing or has another type than the column."""
    find = compile_path(path)

    def cell(item: Json, now: datetime) -> Any:
        values = find(item)
        if not values or values[0] is None:
            return None
        return _cell_value(values[0], type_, now)

    return cell


def _cell_value(value: Any, type_: str, now: datetime) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match type_:
        case "string":
            return value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case "integer":
            return int(value) if number else None
        case "number":
            return float(value) if number else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            return age_of({"metadata": {"creationTimestamp": value}}, now) if isinstance(value, str) else None
    return None


def table(
    columns: Columns,
    objects: Iterable[Json],
    *,
    now: datetime,
    include_object: str = "Metadata",
    list_metadata: Json | None = None,
) -> Json:
    """A `meta.k8s.io/v1` Table; `include_object` is the query parameter `includeObject`: None, Metadata or Object."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata or {},
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": [_row(columns, item, now, include_object) for item in objects],
    }


def _row(columns: Columns, item: Json, now: datetime, include_object: str) -> Json:
    cells = [column.cell(item, now) for column in columns]
    if include_object == "None":
        return {"cells": cells, "object": None}
    if include_object == "Object":
        return {"cells": cells, "object": item}
    partial = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": item.get("metadata") or {},
    }
    return {"cells": cells, "object": partial}
