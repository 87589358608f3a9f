"""Kernel namespaces, without an engine or an image."""
