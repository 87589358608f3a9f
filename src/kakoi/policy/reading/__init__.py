"""Argument vectors → effects: what a program's options and operands do."""
