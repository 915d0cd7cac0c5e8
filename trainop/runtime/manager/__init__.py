"""The process: start and graceful shutdown (`manager`), leader election (`leader`), logging, event loop monitoring."""
