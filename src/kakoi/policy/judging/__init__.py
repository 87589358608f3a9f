"""Is it allowed?  Holds a script against a policy; follows values, folders, files and names."""
