"""A node of the embedded cluster: runs pods as processes of the calling user, without root, Docker or images.

The node has two parts. The agent (`agent.Node`) runs in the caller's event loop and acts as scheduler, kubelet and
cluster DNS of one node. The container runtime (`sandbox/supervisor`, `sandbox/container_init`) is one single-threaded
process, started once, that creates namespaces and forks a small init process per container. It imports the standard
library only, so that a fork takes about a millisecond.

    agent ── Unix socket ──> supervisor ── fork ──> init of a container ── exec ──> the command
      └──────────────────── one channel per container ────┘

Cleanup does not depend on an orderly exit: when the agent ends for any reason, including SIGKILL, each init reads
end-of-file on its channel and kills its container. In network mode `namespaces` the kernel guarantees it as well,
because the supervisor is PID 1 of the PID namespace that contains all containers.
"""
