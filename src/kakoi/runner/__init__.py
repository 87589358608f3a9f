"""HOW IT RUNS, inside the place."""
