"""A node of the embedded cluster: runs pods as processes of the caller, without root, Docker or images.

Two sides. The agent (`agent.Node`) lives in the event loop of the caller: it is scheduler, kubelet and DNS of one node.
The fork side (`supervisor`, `container_init`) is one process without threads, started once, that makes namespaces and
forks a small init per container. It imports the standard library only, so that a fork costs a millisecond.

    agent ── Unix socket ──> supervisor ── fork ──> init of a container ── exec ──> the command
      └──────────────────── one channel per container ────┘

Every channel is a lifeline: when the agent dies, however it dies, each init sees the end of its channel and ends
what it started. With namespaces the kernel does the same, for the supervisor is PID 1 of all that runs.
"""
