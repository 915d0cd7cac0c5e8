"""The operator's image without a container registry: Debian packages and wheels into an OCI archive, with an SBOM.

`make image` builds it; `make test-image` runs it. The contents are those of the Containerfile, without a shell and
package managers.
"""
