"""Shell text → Script: guards, the walk over the parser's tree, and the fast path beside it."""
