"""Sandboxes in environments of container-use."""
