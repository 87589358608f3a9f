"""WHAT NEXT?  The agent loop, its models, tools and prompts."""
