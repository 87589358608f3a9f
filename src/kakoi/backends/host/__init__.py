"""This machine itself, confined or not."""
