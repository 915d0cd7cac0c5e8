"""One declarative file per kind of job, and the shell that they share."""
