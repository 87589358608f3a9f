"""Readers find the effects of programs whose arguments are a language of their own."""
