"""Programs inside arguments: sed, awk, chmod modes, and code in the languages of `inline.py`."""
