"""WHAT NEXT?  What an agent is told."""
