"""The recorded responses, with which the embedded API server is compared, still match a real kube-apiserver."""

from __future__ import annotations

from typing import Any

from tests.local.semantics.record import differences, fresh_server, record


def test_the_api_server_answers_as_recorded(built: None, crds: list[dict[str, Any]]):
    with fresh_server() as api:
        assert differences(record(api, crds)) == []
