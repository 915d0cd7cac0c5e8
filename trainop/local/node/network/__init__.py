"""Addresses and names of pods and services, and the way to the host."""
