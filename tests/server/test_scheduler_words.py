"""The words of the embedded cluster's scheduler are still those of kube-scheduler."""

from __future__ import annotations

import pytest

from e2e.cluster.releases import NEWEST, find_release
from tests.local.scheduler.record import OPTIONS, real_scheduler, says, situations
from tests.needs import need_built


@pytest.mark.skipif(find_release() != NEWEST, reason="the recordings are of the newest release: make test-kubernetes")
def test_kube_scheduler_decides_as_recorded():
    need_built(OPTIONS)
    with real_scheduler() as api:
        differences = {each["name"]: found for each in situations() if (found := says(api, each)) != each["message"]}
    assert differences == {}
