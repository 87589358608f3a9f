"""WHERE?  What sandboxes are made of. Each backend passes the conformance suite."""
