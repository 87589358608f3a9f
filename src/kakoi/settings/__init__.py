"""FROM WHAT?  Settings from files and the environment, read once and strictly."""
