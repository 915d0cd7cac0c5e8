"""End-to-end tooling: a real Kubernetes control plane, framework jobs, benchmarks and generated documentation."""
