"""Tests of the Helm chart with helm."""
