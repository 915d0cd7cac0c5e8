"""The scope of an informer: its namespaces, and the label and field selectors in each of them.

Every scope is one list and watch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trainop.runtime.objects.metadata import Resource

ALL_OTHERS = ""
"""A key of `Namespaces` that stands for all namespaces without an entry."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Label and field selector for one namespace; None means the informer's own selector."""

    labels: str | None = None
    fields: str | None = None


Namespaces: TypeAlias = Sequence[str] | Mapping[str, Selector]
"""Namespaces to watch, optionally with selectors for each; empty means all namespaces."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The objects that one list and watch covers. `namespace` None means all namespaces except the `excluded` ones."""

    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    excluded: frozenset[str] = frozenset()

    @property
    def query(self) -> dict[str, str]:
        """The selectors as query parameters."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in selectors.items() if value}

    def covers(self, namespace: str) -> bool:
        """Whether objects of `namespace` are in scope, selectors aside."""
        if self.namespace is not None:
            return namespace == self.namespace
        return namespace not in self.excluded


def scopes_of(
    resource: Resource, namespaces: Namespaces = (), label_selector: str = "", field_selector: str = ""
) -> list[Scope]:
    """One scope per namespace, or a single one for all namespaces. Selectors of a namespace take precedence."""
    if not resource.namespaced:
        return [Scope(None, label_selector, field_selector)]
    named = namespaces if isinstance(namespaces, Mapping) else dict.fromkeys(namespaces, Selector())
    if not named:
        return [Scope(_only_namespace(field_selector), label_selector, field_selector)]
    others = frozenset(named) - {ALL_OTHERS}
    return [
        _scope(namespace, selector, others, label_selector, field_selector) for namespace, selector in named.items()
    ]


def _scope(namespace: str, selector: Selector, others: frozenset[str], labels: str, fields: str) -> Scope:
    labels = labels if selector.labels is None else selector.labels
    fields = fields if selector.fields is None else selector.fields
    if namespace != ALL_OTHERS:
        return Scope(namespace, labels, fields)
    terms = [fields, *(f"metadata.namespace!={other}" for other in sorted(others))]
    return Scope(None, labels, ",".join(term for term in terms if term), others)


def _only_namespace(field_selector: str) -> str | None:
    """The namespace in a `metadata.namespace=` field selector. Listing by its URL needs permissions only there."""
    for term in field_selector.split(","):
        name, sign, value = term.partition("=")
        if sign and name == "metadata.namespace":
            return value.removeprefix("=")
    return None
