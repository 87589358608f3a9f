"""Python code read by Python's own parser."""
