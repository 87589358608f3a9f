"""DOOR: MCP. `kakoi mcp` serves the tools of `kakoi.tools` over stdio or streamable HTTP.

The SDK is an extra and takes long to import: nothing outside of this package imports it, and
nothing imports this package before `kakoi mcp` is asked for.
"""
