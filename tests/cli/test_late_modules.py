"""Modules that the program loads late are the library's as soon as they are used."""

import subprocess
import sys
import textwrap

import pytest

LATE = "from kakoi.cli.late_modules import load_late; load_late()\n"


def run(code: str) -> str:
    """What a fresh Python prints that loads these modules late."""
    argv = [sys.executable, "-c", LATE + textwrap.dedent(code)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_imported_is_loaded_when_it_is_used() -> None:
    printed = run("""
        import inspect, ssl
        waiting = [type(each).__name__ for each in (inspect, ssl)]
        from ssl import SSLError
        print(waiting, issubclass(SSLError, OSError), ssl.create_default_context().check_hostname)
        print(inspect.signature(lambda a, *, b=1: 0), type(ssl).__name__)
    """)
    assert printed == "['_LateModule', '_LateModule'] True True\n(a, *, b=1) module\n"


@pytest.mark.parametrize(
    "text", ["", "one", "  one\n    two\n      three\n", "\n\n a\n\n\tb\n", "a\n"]
)
def test_what_is_answered_without_loading_is_what_the_library_answers(text: str) -> None:
    printed = run(f"""
        import inspect, platform
        early = [inspect.cleandoc({text!r}), platform.system()]
        inspect.signature, platform.machine
        print(early == [inspect.cleandoc({text!r}), platform.system()], type(inspect).__name__)
    """)
    assert printed == "True module\n"


def test_functions_that_are_known_without_loading_give_what_the_library_gives() -> None:
    printed = run("""
        import functools, inspect, platform
        from pathlib import Path
        @functools.wraps(len)
        def wrapped(): pass
        values = [len, print, (lambda: 0), wrapped, Path, 1]
        early = [inspect.isfunction(each) for each in values], platform.machine()
        uri = Path("/a b/\u00e9").as_uri()
        import traceback
        stacks = traceback.extract_stack(), traceback.extract_stack()
        same = stacks[0][0].name == stacks[1][0].name == "<module>", len(stacks[0])
        plain = inspect.unwrap(print) is print and type(inspect).__name__
        late = inspect.unwrap(wrapped) is len
        inspect.signature, platform.node
        again = [inspect.isfunction(each) for each in values], platform.machine()
        print(plain, late, early == again, uri, same)
    """)
    assert printed == "_LateModule True True file:///a%20b/%C3%A9 (True, 1)\n"


def test_only_asyncio_takes_a_stand_in_for_the_sockets_of_ssl() -> None:
    printed = run("""
        import asyncio, socket, ssl
        from asyncio import base_events
        with socket.socket() as plain:
            base_events._check_ssl_socket(plain)
        is_late = type(ssl).__name__
        from ssl import SSLSocket
        with ssl.create_default_context().wrap_socket(socket.socket(), server_hostname="x") as secret:
            try:
                base_events._check_ssl_socket(secret)
            except TypeError as error:
                print(is_late, SSLSocket.__module__, error)
    """)
    assert printed == "_LateModule ssl Socket cannot be of type SSLSocket\n"


def test_threads_that_use_a_module_at_once_all_see_it_whole() -> None:
    printed = run("""
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier
        import inspect
        ready = Barrier(8)
        def use(_):
            ready.wait(30)
            return str(inspect.signature(use))
        with ThreadPoolExecutor(8) as many:
            print(set(many.map(use, range(8))))
    """)
    assert printed == "{'(_)'}\n"


def test_an_error_shows_its_lines() -> None:
    printed = run("""
        import traceback
        try:
            1 / 0
        except ZeroDivisionError as error:
            print(traceback.format_exception(error)[-1].strip())
    """)
    assert printed == "ZeroDivisionError: division by zero\n"
