"""Validation of names, label keys and label values, with the messages of kube-apiserver.

Source: apimachinery `pkg/util/validation/validation.go`. Every function returns a list of problems, empty if valid.
"""

from __future__ import annotations

import re
from functools import lru_cache

CACHE_SIZE = 4096
"""Results are cached, because every write repeats the same names. Callers must not mutate them."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_DNS_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"


def _explain(message: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)[:-2]
    return f"{message} (e.g. {shown}, regex used for validation is '{pattern}')"


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} characters"


@lru_cache(CACHE_SIZE)
def dns_subdomain(name: str) -> list[str]:
    """RFC 1123 subdomain, the rule for most names."""
    wrong = [_too_long(253)] if len(name) > 253 else []
    if not re.fullmatch(_SUBDOMAIN, name):
        what = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character"
        )
        wrong.append(_explain(what, _SUBDOMAIN, "example.com"))
    return wrong


def dns_label(name: str) -> list[str]:
    """RFC 1123 label: names of namespaces, containers and volumes."""
    wrong = [_too_long(63)] if len(name) > 63 else []
    if re.fullmatch(_LABEL, name):
        return wrong
    if re.fullmatch(_SUBDOMAIN, name):
        wrong.append("must not contain dots")
    else:
        what = (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
            "and must start and end with an alphanumeric character"
        )
        wrong.append(_explain(what, _LABEL, "my-name", "123-abc"))
    return wrong


def dns_1035_label(name: str) -> list[str]:
    """RFC 1035 label: names of Services."""
    wrong = [_too_long(63)] if len(name) > 63 else []
    if not re.fullmatch(_DNS_1035, name):
        what = (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
            "start with an alphabetic character, and end with an alphanumeric character"
        )
        wrong.append(_explain(what, _DNS_1035, "my-name", "abc-123"))
    return wrong


def path_segment(name: str) -> list[str]:
    """A segment of a URL path: names of RBAC objects."""
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{part}'" for part in ("/", "%") if part in name]


@lru_cache(CACHE_SIZE)
def qualified_name(name: str) -> list[str]:
    """Keys of labels and annotations, and finalizers: `name` or `prefix/name`."""
    prefix, slash, rest = name.rpartition("/")
    wrong: list[str] = []
    if "/" in prefix:
        what = (
            "a valid label key must consist of alphanumeric characters, '-', '_' or '.', "
            "and must start and end with an alphanumeric character"
        )
        return [_explain(what, _QUALIFIED, "MyName", "my.name", "123-abc") + _PREFIX_HINT]
    if slash and not prefix:
        wrong.append("prefix part must be non-empty")
    elif prefix:
        wrong += [f"prefix part {problem}" for problem in dns_subdomain(prefix)]
    if not rest:
        wrong.append("name part must be non-empty")
    elif len(rest) > 63:
        wrong.append(f"name part {_too_long(63)}")
    if not re.fullmatch(_QUALIFIED, rest):
        what = (
            "name part must consist of alphanumeric characters, '-', '_' or '.', "
            "and must start and end with an alphanumeric character"
        )
        wrong.append(_explain(what, _QUALIFIED, "MyName", "my.name", "123-abc"))
    return wrong


_PREFIX_HINT = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"


@lru_cache(CACHE_SIZE)
def label_value(value: str) -> list[str]:
    """Values of labels."""
    wrong = [_too_long(63)] if len(value) > 63 else []
    if not re.fullmatch(_VALUE, value):
        what = (
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
            "and must start and end with an alphanumeric character"
        )
        wrong.append(_explain(what, _VALUE, "MyValue", "my_value", "12345"))
    return wrong


def config_key(name: str) -> list[str]:
    """Keys of ConfigMaps and Secrets."""
    wrong = [_too_long(253)] if len(name) > 253 else []
    if not re.fullmatch(_CONFIG_KEY, name):
        what = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
        wrong.append(_explain(what, _CONFIG_KEY, "key.name", "KEY_NAME", "key-name"))
    elif name == ".":
        wrong.append("must not be '.'")
    elif name.startswith(".."):
        wrong.append("must not start with '..'" if name != ".." else "must not be '..'")
    return wrong


def environment_name(name: str) -> list[str]:
    """Names of environment variables, as relaxed since 1.30: printable ASCII without `=`."""
    if not name or "=" in name or not (name.isascii() and name.isprintable()):
        return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]
    return []


def port_name(name: str) -> list[str]:
    """IANA service name: names of ports."""
    wrong = []
    if len(name) > 15:
        wrong.append("must be no more than 15 characters")
    if not re.fullmatch("[-a-z0-9]+", name):
        wrong.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", name):
        wrong.append("must contain at least one letter (a-z)")
    if "--" in name:
        wrong.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        wrong.append("must not begin or end with a hyphen")
    return wrong
