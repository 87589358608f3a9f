"""Text for a terminal: nothing in it that the terminal would obey."""


def shown(text: str) -> str:
    """The text in one line, with everything that is not printable written out."""
    return "".join(_shown_character(char) for char in text)


def _shown_character(char: str) -> str:
    if char == "\t":
        return " "
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) > 0xFF else f"\\x{ord(char):02x}"
