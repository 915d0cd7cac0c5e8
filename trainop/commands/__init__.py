"""Commands about single jobs, on any cluster or without one: what a job would make, and what became of it."""
