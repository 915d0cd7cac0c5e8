"""Containers from their images, run by podman."""
