"""The supported subset of CEL in validation rules of CRDs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.local.api.support import DEFINITIONS, Api, definition
from trainop.local.api.schema.cel import RuleError, compile_expression, compile_rules

SELF = {"a": 1, "b": "text", "l": [1, 2, 3], "m": {"k": "v", "n": None}, "t": True, "f": 1.5}
OLD = {"a": 2, "b": "text"}


def value(text: str) -> Any:
    return compile_expression(text)({"self": SELF, "oldSelf": OLD})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("self.b == oldSelf.b", True),
        ("self == oldSelf", False),
        ("self.a < oldSelf.a", True),
        ("self.a + 1 >= oldSelf.a", True),
        ("self.a != 1", False),
        ("self.t == 1", False),
        ("self.t", True),
        ("!self.t || self.a == 1", True),
        ("!(self.t && self.a > 1)", True),
        ("has(self.a)", True),
        ("has(self.x)", False),
        ("has(self.m.k) && !has(self.m.z)", True),
        ("!has(self.x) || self.x > 3", True),
        ("has(self.x) ? self.x : self.a", 1),
        ("self.a == 2 ? 'two' : self.a == 1 ? 'one' : 'more'", "one"),
        ("self.b in ['text', \"other\"]", True),
        ("'k' in self.m", True),
        ("4 in self.l", False),
        ("size(self.l) == 3 && self.l.size() <= 3", True),
        ("self.b.startsWith('te') && self.b.endsWith('xt')", True),
        ("self.b.contains('ex') && self.b.matches('^t.*t$')", True),
        ("self.l[0] + self.l[2]", 4),
        ("self.m['k']", "v"),
        ("self.m.n == null", True),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("1 + 2 * 3 - 4", 3),
        ("self.f * 2.0", 3.0),
        ("1e3", 1000.0),
        ("true && false", False),
        (r"'it\'s'", "it's"),
    ],
)
def test_expressions(text: str, expected: Any):
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("self.x == 1", "no such key: x"),
        ("self.l[9]", "index out of bounds: 9"),
        ("self.b < 1", "no such overload"),
        ("self.a.b", "no such key: b"),
        ("1 / 0", "no such overload"),
        ("size(1)", "no such overload"),
    ],
)
def test_expressions_that_these_values_do_not_fit(text: str, message: str):
    expression = compile_expression(text)
    with pytest.raises(RuleError, match=message):
        expression({"self": SELF, "oldSelf": OLD})


@pytest.mark.parametrize(
    "text",
    ["self.all(x, x > 1)", "quantity(self)", "self ==", "self = 1", "(self", "self)", "[1, 2", "a ? b", "x == 1", "§"],
)
def test_rules_that_cannot_be_compiled(text: str):
    with pytest.raises(RuleError):
        compile_expression(text)


def test_which_rules_compare_with_the_past():
    plain, transition, optional = compile_rules(
        [{"rule": "self > 1"}, {"rule": "self == oldSelf "}, {"rule": "self == oldSelf", "optionalOldSelf": True}]
    )
    assert [rule.transition for rule in (plain, transition, optional)] == [False, True, False]
    assert transition.message == "failed rule: self == oldSelf"


async def test_installing_a_crd_warns_about_rules_that_are_not_checked():
    made = definition()
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = [{"rule": "self.all(x, x)"}]
    answer = await Api()("POST", DEFINITIONS, made)
    assert answer.code == 201
    warning = "the rule 'self.all(x, x)' is not checked here: function 'all' is not known"
    assert answer.headers["warning"] == f'299 - "{warning}"'


async def test_a_crd_whose_columns_cannot_be_read_is_refused():
    made = definition()
    made["spec"]["versions"][0]["additionalPrinterColumns"] = [{"name": "A", "type": "string", "jsonPath": ".a["}]
    answer = await Api()("POST", DEFINITIONS, made)
    assert answer.code == 422
    assert [cause["field"] for cause in answer.json["details"]["causes"]] == [
        "spec.versions[0].additionalPrinterColumns[0].jsonPath"
    ]
