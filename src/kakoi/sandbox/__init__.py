"""WHERE?  One file per place."""
