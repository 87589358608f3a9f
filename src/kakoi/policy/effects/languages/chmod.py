"""chmod modes: do they let others write, or set a set-id bit?"""

from typing import Final

from kakoi._support.late import pattern

_SYMBOLIC: Final = pattern(r"([ugoa]*)((?:[-+=](?:[ugo]|[rwxXst]*))+)")
_ACTION: Final = pattern(r"([-+=])([ugo]|[rwxXst]*)")
_OTHERS_WRITE: Final = 0o002
_SET_ID: Final = 0o6000


def mode_effects(mode: str) -> list[str]:
    """Return `open-mode` if others can write, `set-id`, or `unclear-program` for an odd mode."""
    text = mode.removeprefix("+").removeprefix("=") if mode[1:].isdigit() else mode
    if text.isdigit():
        return _octal(text)
    found: set[str] = set()
    for clause in mode.split(","):
        parsed = _SYMBOLIC.fullmatch(clause)
        if not parsed:
            return ["unclear-program"]
        who = parsed[1]
        for sign, what in _ACTION.findall(parsed[2]):
            if sign == "-":
                continue
            # `+w` without a letter obeys the umask, which keeps others from writing.
            if "w" in what and ("o" in who or "a" in who or (not who and sign == "=")):
                found.add("open-mode")
            # `o=u` and `o+g` copy bits that are unknown here.
            if what in ("u", "g", "o") and ("o" in who or "a" in who or not who):
                found.add("open-mode")
            if "s" in what:
                found.add("set-id")
    return sorted(found)


def _octal(text: str) -> list[str]:
    try:
        value = int(text, 8)
    except ValueError:
        return ["unclear-program"]
    found = []
    if value & _OTHERS_WRITE:
        found.append("open-mode")
    if value & _SET_ID:
        found.append("set-id")
    return found
