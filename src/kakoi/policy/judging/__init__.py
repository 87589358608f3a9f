"""Scripts against a policy: the walk, and what it must know of values, files and names."""
