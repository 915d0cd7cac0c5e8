"""`python -m e2e.monitoring`: makes `prometheus` and `promtool` available to the tests; exit code 3 if it cannot."""

from __future__ import annotations

import sys

from e2e.monitoring.programs import MonitoringError, obtain

try:
    obtain()
except MonitoringError as error:
    print(f"tests with Prometheus are skipped: {error}", file=sys.stderr)
    sys.exit(3)
