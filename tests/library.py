"""A copy of kakoi that every user can import, because the checkout may be in root's home."""

import atexit
import compileall
import importlib.metadata
import importlib.util
import shutil
import tempfile
from functools import cache
from pathlib import Path

import kakoi

_NEEDED = ("click", "yaml")


@cache
def readable_library() -> Path:
    """Return a folder for PYTHONPATH with kakoi and its dependencies, one copy for each worker.

    The copy includes byte code, because its users cannot write here and each of their interpreters
    would compile everything again.
    """
    root = Path(tempfile.mkdtemp(prefix="kakoi-test-library-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    root.chmod(0o755)
    # As deep as a normal installation, because kakoi looks for `shfmt` relative to this folder.
    library = root / "lib" / "python" / "site"
    shutil.copytree(Path(kakoi.__file__).parent, library / "kakoi")
    for name in _NEEDED:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.submodule_search_locations
        shutil.copytree(found.submodule_search_locations[0], library / name)
    for file in importlib.metadata.files("shfmt-py") or []:
        copy = library / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.locate(), copy)
    compileall.compile_dir(library, quiet=1)
    return library
