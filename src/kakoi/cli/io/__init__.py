"""Streams, terminal, signals and text: how commands talk to people and programs."""
