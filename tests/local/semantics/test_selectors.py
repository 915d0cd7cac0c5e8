"""Label and field selectors, with error messages recorded from a kube-apiserver 1.34.4."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainop.local.api.request.selectors import SelectorError, field_selector, label_selector

LABELS = {"app": "web", "tier": "db", "n": "5", "empty": "", "a.b/c": "x"}


def selects(text: str, labels: dict[str, str] | None = None) -> bool:
    return label_selector(text)({"metadata": {"labels": LABELS if labels is None else labels}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("app=web", True),
        ("app == web", True),
        ("app=web,tier=db", True),
        ("app=web,tier=x", False),
        ("app!=web", False),
        ("none!=web", True),
        ("app in (a, web)", True),
        ("app in (a,b)", False),
        ("none in (a)", False),
        ("app notin (a,b)", True),
        ("app notin (web)", False),
        ("none notin (a)", True),
        ("app", True),
        ("none", False),
        ("!none", True),
        ("! app", False),
        ("empty=", True),
        ("empty==,app", True),
        ("app=", False),
        ("empty in ()", True),
        ("empty in (a,,b)", True),
        ("empty in (,a)", True),
        ("n>4", True),
        ("n>5", False),
        ("n<6", True),
        ("app>1", False),
        ("none<1", False),
        ("a.b/c=x", True),
        ("in in (in)", False),
        ("in,!notin", False),
    ],
)
def test_label_selectors(text: str, expected: bool):
    assert selects(text) is expected


def test_objects_without_labels():
    assert label_selector("!a")({}) is True
    assert label_selector("a")({"metadata": {"labels": None}}) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
        ("a notin b", "unable to parse requirement: found 'b' expected: '('"),
        ("a=b,", "found '', expected: identifier after ','"),
        ("a==b!", "found '!', expected: ',' or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("=x", "found '=', expected: !, identifier, or 'end of string'"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("a==!b", "unable to parse requirement: found '!', expected: identifier"),
        (
            "a>b",
            (
                'unable to parse requirement: values[0]: Invalid value: "b": '
                "for 'Gt', 'Lt' operators, the value must be an integer"
            ),
        ),
    ],
)
def test_label_selectors_that_cannot_be_read(text: str, message: str):
    with pytest.raises(SelectorError) as caught:
        label_selector(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a/b/c=d", 'unable to parse requirement: <nil>: Invalid value: "a/b/c": a valid label key must consist of'),
        ("a=-x", 'unable to parse requirement: values[0][a]: Invalid value: "-x": a valid label must be an empty'),
        (
            f"{'k' * 64}=x",
            f'unable to parse requirement: <nil>: Invalid value: "{"k" * 64}": name part must be no more',
        ),
        (f"a={'v' * 64}", f'unable to parse requirement: values[0][a]: Invalid value: "{"v" * 64}": must be no more'),
    ],
)
def test_label_selectors_that_name_no_labels(text: str, start: str):
    with pytest.raises(SelectorError) as caught:
        label_selector(text)
    assert str(caught.value).startswith(start)


@given(st.text("ab=!,() <>in-/", max_size=12))
def test_any_text_is_a_selector_or_refused(text: str):
    try:
        selected = selects(text)
    except SelectorError:
        return
    assert isinstance(selected, bool)


POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "ns"},
    "spec": {"nodeName": "n1", "restartPolicy": "Never"},
    "status": {"phase": "Running", "podIP": "10.0.0.1"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("metadata.name=p", True),
        ("metadata.name==p,status.phase=Running", True),
        ("metadata.name=p,", True),
        ("status.phase!=Running", False),
        ("status.phase!=Succeeded,status.phase!=Failed", True),
        ("spec.nodeName=", False),
        ("spec.nodeName!=", True),
        ("spec.host=n1", True),
        ("status.nominatedNodeName=", True),
        ("spec.hostNetwork=false", True),
    ],
)
def test_field_selectors(text: str, expected: bool):
    assert field_selector(text, kind="Pod")(POD) is expected


def test_fields_of_events():
    event = {
        "involvedObject": {"kind": "Pod", "name": "a,b=c\\"},
        "reason": "R",
        "type": "Warning",
        "source": {"component": "c"},
    }
    assert field_selector(r"involvedObject.name=a\,b\=c\\,type=Warning,source=c", kind="Event")(event)
    assert field_selector("source=rc", kind="Event")({"reportingComponent": "rc"})
    assert not field_selector("involvedObject.kind=Job", kind="Event")(event)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "invalid selector: 'a'; can't understand 'a'"),
        ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ("spec.foo=1", "field label not supported: spec.foo"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ("metadata.name=a\\q", "invalid field selector: invalid escape sequence: \\q"),
        ("metadata.name=a\\", "invalid field selector: invalid escape sequence: \\"),
    ],
)
def test_field_selectors_that_cannot_be_read(text: str, message: str):
    with pytest.raises(SelectorError) as caught:
        field_selector(text, kind="Pod")
    assert str(caught.value) == message


def test_custom_resources_offer_name_and_namespace_only():
    assert field_selector("metadata.namespace=ns", group="kubeflow.org", kind="PyTorchJob")(POD)
    with pytest.raises(SelectorError, match=r"field label not supported: status\.phase"):
        field_selector("status.phase=Running", group="kubeflow.org", kind="PyTorchJob")
