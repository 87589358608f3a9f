"""Queues of task keys: SQLite for the processes of one machine, Redis for several machines."""
