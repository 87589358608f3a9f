"""Programs inside arguments: what sed, awk, inline code and chmod modes do."""
