"""A page that shows jobs, their replicas and their logs: `trainop ui` and `trainop run --ui`. Read-only.

`source` reads from a cluster or a kept run, `model` makes of it what the page shows, `feed` holds the merged log of a
job, `board` shares both among all viewers, and `server` answers browsers. The page itself is in `static`.
"""
