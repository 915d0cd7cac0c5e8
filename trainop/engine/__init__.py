"""Pure: from one snapshot of a job to one plan. No asyncio, no I/O, no clock, no logging, no randomness."""
