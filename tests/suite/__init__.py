"""pytest plugins for the suite itself: tiers, hung tests, and a profile of the time."""
