"""DI-engine's own client of di-server, against ours."""
