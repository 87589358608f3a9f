"""The file that tells programs in a sandbox where names are resolved.

Apart from outlet.py, because settings need it and the machinery of an outlet takes long to import.
"""

import os
from typing import Final

_NAME: Final = "resolv.conf"
# Our name server, if the sandbox has a network (network/name_server.py); otherwise nobody answers.
RESOLV_CONF: Final = b"nameserver 127.0.0.1\n"


def resolv_conf_of(folder: str) -> str:
    """Return the path of the file to mount at /etc/resolv.conf, for a `HandoverFolder.folder`."""
    return os.path.join(os.path.dirname(folder), _NAME)
