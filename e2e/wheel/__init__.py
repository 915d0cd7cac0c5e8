"""Tests of the wheel and the source archive in `dist/`, in a new environment: `make test-wheel`."""
