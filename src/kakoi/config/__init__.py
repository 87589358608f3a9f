"""FROM WHAT?  Files and environment → settings, once and strictly; settings → a gate."""
