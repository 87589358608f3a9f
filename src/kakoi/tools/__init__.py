"""WHAT CAN A MODEL CALL?  Commands, jobs, files and packages, all through one gate.

`kakoi.tools.toolset.Toolset` calls a tool by its name. `mcp` serves these tools, and `agents` calls
them directly.
"""
