"""Sandboxes in Docker or Podman containers."""
