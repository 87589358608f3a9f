"""`sha256` of the interpreter itself: `hashlib` loads OpenSSL too, which takes long."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256  # Since Python 3.12.
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:  # An interpreter that was built without it.
            from hashlib import sha256

__all__ = ["sha256"]
