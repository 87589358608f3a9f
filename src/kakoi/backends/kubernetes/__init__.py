"""Sandboxes in pods of a Kubernetes cluster."""
