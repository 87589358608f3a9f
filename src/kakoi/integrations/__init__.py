"""Doors into frameworks for agents: each module is one framework's own idea of a sandbox.

`kakoi.integrations.pydantic_ai` needs pydantic-ai, and so on: each needs the extra of its name.
"""
