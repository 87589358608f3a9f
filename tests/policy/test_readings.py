"""Every listed program has been read, or is said to be unread."""

from pathlib import Path

import yaml

from kakoi.policy.profiles import load_policy

READINGS = yaml.safe_load((Path(__file__).parent / "readings.yaml").read_text("utf-8"))


def listed() -> set[str]:
    policy = load_policy()
    return set(policy.programs - policy.denied_programs)


def test_a_listed_program_is_read_or_said_to_be_unread() -> None:
    read = [name for names in READINGS["read"].values() for name in names.split()]
    unread = READINGS["unread"].split()
    assert sorted({*read, *unread}) == sorted([*read, *unread]), "a program is there twice"
    assert {*read, *unread} == listed()


def test_what_was_read_names_its_source() -> None:
    assert all(len(source) > 20 for source in READINGS["read"])
