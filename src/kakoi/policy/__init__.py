"""May it run?  Shell text in, a Decision out; nothing here touches files, clock or environment."""
