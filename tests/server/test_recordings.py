"""The recorded responses, with which the embedded API server is compared, still match a real kube-apiserver."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.releases import NEWEST, find_release
from tests.local.semantics.record import differences, fresh_server, record


@pytest.mark.skipif(find_release() != NEWEST, reason="the recordings are of the newest release: make test-kubernetes")
def test_the_api_server_answers_as_recorded(built: None, crds: list[dict[str, Any]]):
    with fresh_server() as api:
        assert differences(record(api, crds)) == []
