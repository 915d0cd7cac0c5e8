"""The story of a job as a timeline: `tell(Evidence) -> Story`. Pure; `trainop describe` collects and prints.

The phases are those of `trainop.engine.phases`, read from the status and from events of what the status has forgotten.
Within a phase that starts pods, the steps of the replicas are told, over thousands of pods in one line each.
"""

from trainop.explain.story.tell import tell
from trainop.explain.story.timeline import Spread, Step, Story

__all__ = ["Spread", "Step", "Story", "tell"]
