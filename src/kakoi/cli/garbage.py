"""When the program collects garbage: not before it knows its command, and then rarely."""

import gc

# Objects made before a collection looks at the young ones: commands make many that stay.
_YOUNG_OBJECTS = 50_000


def collect_garbage() -> None:
    """Collect garbage from now on, except what is loaded: modules are never garbage."""
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    gc.enable()
