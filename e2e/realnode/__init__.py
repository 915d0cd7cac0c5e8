"""Real trainings and real faults on a real node: kubelet, containers, frameworks, and the operator from its own image.

`make e2e` runs everything; docs/testing.md describes it. Each `test_JOB.py` is one part.
"""
