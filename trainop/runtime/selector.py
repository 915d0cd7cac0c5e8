"""Selectors as the API server reads them: rendered for queries, and matched against labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainop.runtime.objects import Json


def equality(labels: Mapping[str, str]) -> str:
    """The label selector that asks for exactly these labels: `a=1,b=2`."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


def field_equality(fields: Mapping[str, str]) -> str:
    """The field selector that asks for exactly these values, escaped as apimachinery `fields.EscapeValue` does."""
    return ",".join(f"{path}={_escape(value)}" for path, value in fields.items())


def render(selector: Json) -> str:
    """A `metav1.LabelSelector` as a query; raises `ValueError` on an operator that does not exist."""
    terms = [f"{name}={value}" for name, value in (selector.get("matchLabels") or {}).items()]
    terms += _expressions(selector)
    return ",".join(terms)


def matches(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether `labels` satisfy a `metav1.LabelSelector`; an empty selector is satisfied by everything."""
    wanted = (selector.get("matchLabels") or {}).items()
    return all(labels.get(name) == value for name, value in wanted) and all(
        _satisfied(requirement, labels) for requirement in selector.get("matchExpressions") or ()
    )


def _expressions(selector: Json) -> Iterator[str]:
    for requirement in selector.get("matchExpressions") or ():
        name, values = requirement["key"], ",".join(requirement.get("values") or ())
        match requirement["operator"]:
            case "In":
                yield f"{name} in ({values})"
            case "NotIn":
                yield f"{name} notin ({values})"
            case "Exists":
                yield name
            case "DoesNotExist":
                yield f"!{name}"
            case other:
                raise ValueError(f"{other!r} is not an operator of a label selector")


def _satisfied(requirement: Json, labels: Mapping[str, str]) -> bool:
    name, values = requirement["key"], requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return labels.get(name) in values
        case "NotIn":
            return labels.get(name) not in values
        case "Exists":
            return name in labels
        case "DoesNotExist":
            return name not in labels
        case other:
            raise ValueError(f"{other!r} is not an operator of a label selector")


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
