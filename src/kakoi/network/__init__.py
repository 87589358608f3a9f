"""WHAT CAN IT REACH?  Lists of domains, and the proxy that enforces them."""
