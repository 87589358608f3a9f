"""May it run?  Shell text in, a Decision out.

Nothing here touches files, clock or environment, but for the data that is shipped.
"""
