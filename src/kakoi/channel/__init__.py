"""The client end of the byte stream to the program that runs commands inside a sandbox."""
