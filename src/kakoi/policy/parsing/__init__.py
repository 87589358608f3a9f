"""What does the text say?  Shell text → Script: guards, the parser, its tree, and a fast path."""
