"""`kakoi explain`: no error code and no rule is without words."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi import errors
from kakoi.cli.explanations import BUILT_IN, CAUSES_AND_FIXES, explanations
from kakoi.errors import KakoiError
from kakoi.policy.decide import decide
from kakoi.policy.package_rules import RULES
from kakoi.policy.profiles import PROFILES, load_policy
from tests.cli.calling import Home

PACKAGE = Path(errors.__file__).parent
RULE = """
policy:
  rules:
    - {id: no-frob, verdict: deny, reason: "`{subject}` is loud", hint: Use quiet., commands: frob,
       match: [frob --now]}
"""


def error_codes(path: Path) -> Iterator[str]:
    """`code = "X"` or `code: ClassVar[str] = "X"` in a class."""
    for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for node in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                node.value, ast.Constant
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if [ast.unparse(target) for target in targets] == ["code"]:
                    yield str(node.value.value)


def literal_findings(path: Path) -> Iterator[str]:
    """Rules that the code names itself: `Finding("x", …)`, `.find("x", …)`, `{"id": "x"}`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and len(node.args) > 3:
            name = (
                node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            )
            first = node.args[0]
            if name in ("Finding", "find") and isinstance(first, ast.Constant):
                yield str(first.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                is_id = isinstance(key, ast.Constant) and key.value == "id"
                if is_id and isinstance(value, ast.Constant):
                    yield str(value.value)


def test_every_error_code_is_explained_and_no_other() -> None:
    codes = {code for path in PACKAGE.rglob("*.py") for code in error_codes(path) if code}
    assert KakoiError.code in codes
    assert set(CAUSES_AND_FIXES) == codes
    explained = explanations()
    for code in codes:
        found = explained[code]
        assert found.kind == "error"
        assert all((found.meaning, found.why, found.what_to_do, found.where))


def test_every_rule_is_explained_with_its_examples() -> None:
    explained = explanations()
    for profile in PROFILES:
        for rule in load_policy(profile).rules:
            found = explained[rule.id]
            assert found.kind == "rule"
            assert all((found.meaning, found.why, found.what_to_do, found.refused)), rule.id
            assert "{subject}" not in found.meaning + found.what_to_do


def test_every_finding_that_the_code_makes_without_a_rule_is_explained() -> None:
    named = {name for path in (PACKAGE / "policy").rglob("*.py") for name in literal_findings(path)}
    assert {"unreadable", "empty-command", "asks-first", "blocked-by-list"} <= named
    # These rules explain themselves under a policy that has them.
    named -= {str(rule["id"]) for rule in RULES}
    assert sorted(named - set(explanations())) == []


def test_the_examples_of_what_has_no_rule_are_true() -> None:
    for each in BUILT_IN:
        for text in each.refused:
            assert each.code in {f.rule for f in decide(load_policy(), text).findings}, text
        for text in each.fine:
            assert decide(load_policy(), text).allowed, text


def test_a_rule_is_explained_with_what_to_do_and_examples(home: Home) -> None:
    status, out, _ = home("explain", "recursive-delete")
    assert status == 0
    assert out.startswith("rule recursive-delete: recursive removal is not allowed")
    assert "  what to do   Remove named files (`rm file`). Generated folders go with" in out
    assert "  for example  rm -r src\n" in out
    assert "  but allowed  rm file.txt\n" in out


@pytest.mark.parametrize("code", ["TIMED_OUT", "timed_out", "timed-out", "Timed-Out"])
def test_an_error_is_found_however_it_is_written(home: Home, code: str) -> None:
    status, out, _ = home("explain", code)
    assert status == 0
    assert out.startswith("error TIMED_OUT: The command exceeded its timeout")
    assert "kakoi run --timeout" in out
    assert "kakoi.errors.TimeoutError" in out


def test_what_kakoi_check_shows_can_be_pasted(home: Home) -> None:
    shown = home("check", "sudo id")[1].split(":")[0]
    assert shown == "deny[privilege]"
    assert home("explain", shown)[1].startswith("rule privilege: ")


def test_without_a_code_everything_is_listed(home: Home) -> None:
    status, out, _ = home("explain")
    assert status == 0
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert listed == list(explanations())
    assert out.endswith("`kakoi explain CODE` prints the details.\n")
    answer = json.loads(home("explain", "--json")[1])
    assert [each["code"] for each in answer] == listed


def test_the_object_for_programs_holds_all_of_it(home: Home) -> None:
    answer = json.loads(home("explain", "--json", "in-place-edit")[1])
    assert set(answer) == {
        *("code", "kind", "meaning", "why", "what_to_do", "where", "refused", "fine"),
    }
    assert answer["kind"] == "rule"


def test_an_unknown_code_names_the_nearest(home: Home) -> None:
    status, out, err = home("explain", "TIMEDOUT")
    assert (status, out) == (2, "")
    assert "did you mean `kakoi explain TIMED_OUT`" in err
    assert err.endswith("hint: `kakoi explain` lists all codes\n")
    status, _, err = home("explain", "\x1b[31mzzz")
    assert status == 2
    assert "did you mean" not in err
    assert "\x1b" not in err


def test_rules_of_your_own_are_explained_too(home: Home) -> None:
    home.write(home.config, RULE)
    status, out, _ = home("explain", "no-frob")
    assert status == 0
    assert out.startswith("rule no-frob: `…` is loud\n")
    assert "  what to do   Use quiet.\n" in out


def test_wrong_settings_do_not_keep_an_explanation_back(home: Home) -> None:
    home.write(home.config, "polcy: 1\n")
    status, out, err = home("explain", "CONFIGURATION_ERROR")
    assert status == 0
    assert "kakoi config show --origin" in out
    assert "your own rules are not included: " in err
    assert "unknown key `polcy`" in err
