"""FOR WHOM?  One clean environment for each task."""
