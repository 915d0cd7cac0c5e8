"""Why a job does not run, or how it ended: `diagnose(Evidence) -> Diagnosis`. Pure; `trainop why` collects and prints.

Each rule (`queue`, `pods`, `operator`, `course`) looks for situations and returns a `Cause` for each that it finds. The
causes are sorted by their weight: what must be solved first comes first.
"""

from trainop.explain.why.cause import Cause, Diagnosis, State
from trainop.explain.why.diagnose import diagnose
from trainop.explain.why.evidence import ContainerFacts, Evidence, PodFacts, read_pod

__all__ = ["Cause", "ContainerFacts", "Diagnosis", "Evidence", "PodFacts", "State", "diagnose", "read_pod"]
