"""Each value of the charts has a row in the table of `make test-chart`. This part needs no helm."""

from __future__ import annotations

from e2e.chart.test_values import test_every_value_has_a_row  # noqa: F401  # pytest finds it here, too
