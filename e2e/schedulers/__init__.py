"""Tests of the operator beside real schedulers and Kueue: `make test-schedulers`."""
