"""Plugins for pytest that look after the suite itself: tiers, hung tests, and where the time goes."""
