"""What may a sandbox reach? Lists of domains, and the proxy that keeps to them."""
