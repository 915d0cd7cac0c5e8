"""Tests of operators that are built on `trainop.runtime`: a cluster in the test's process."""

from __future__ import annotations

from trainop.testing.cluster import TestCluster

__all__ = ["TestCluster"]
