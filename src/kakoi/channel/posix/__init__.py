"""A channel into sandboxes that have a shell but no Python."""
