"""Every rule reports its own bad example and nothing in its good one."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.check.rules import FAMILIES, RULES, lost, typestates
from paceline.concurrency.check.rules.rule import Rule, Witness
from tests.each import each

ROOT = Path(__file__).parents[3]
RULES_FOLDER = Path(typestates.__file__).parent


@each("code", RULES)
def test_a_rule_finds_its_bad_example_and_nothing_in_its_good_one(code: str) -> None:
    rule = RULES[code]
    bad = check_text("bad.py", rule.bad)
    assert [f.rule for f in bad] == [code]
    assert bad[0].story, "a finding says who does what"
    assert bad[0].remedy, "and what to change"
    assert check_text("good.py", rule.good) == []


def own_function(rule: Rule) -> Callable[..., Iterator[Witness]] | None:
    """The function that finds a rule's mistakes; None where a solver finds them all."""
    return next((find for find in rule.finds if not isinstance(find, partial)), None)


def solved(find: partial[Iterator[Witness]]) -> Iterator[tuple[str, set[str]]]:
    """The forms that a solver finds for the rows which it is given, each with the terms of its witnesses."""
    if find.func is typestates.breaches:
        yield from ((form, typestates.TERMS) for form in typestates.FORMS)
    else:
        yield from ((kind.form, lost.TERMS) for kind in find.args[0])


def witnesses_of(rule: Rule) -> Iterator[ast.Call]:
    """Where the function of a rule, and those of its file that it uses, make witnesses."""
    function = own_function(rule)
    tree = ast.parse(Path(sys.modules[function.__module__].__file__ or "").read_text() if function else "")
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    others = {other.name.replace("-", "_") for other in RULES.values() if other is not rule}
    todo, reached = [rule.name.replace("-", "_")], set[str]()
    while todo:
        name = todo.pop()
        if name in defined and name not in reached | others:
            reached.add(name)
            todo += [node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
    for name in sorted(reached):
        calls = (node for node in ast.walk(defined[name]) if isinstance(node, ast.Call))
        yield from (call for call in calls if getattr(call.func, "id", "") in ("Witness", "not_atomic"))


@each("code", RULES)
def test_the_function_of_a_rule_has_its_name(code: str) -> None:
    function = own_function(RULES[code])
    assert RULES[code].finds
    assert function is None or function.__name__ == RULES[code].name.replace("-", "_")


@each("code", RULES)
def test_the_sentences_of_a_rule_name_what_its_witnesses_carry(code: str) -> None:
    rule = RULES[code]
    by_solver = {form: terms for find in rule.finds if isinstance(find, partial) for form, terms in solved(find)}
    assert all(rule.forms[name].terms <= terms for name, terms in by_solver.items() if name in rule.forms)
    named: dict[str, set[str]] = {name: set() for name in by_solver if name in rule.forms}
    for call in witnesses_of(rule):
        terms = {keyword.arg or "" for keyword in call.keywords} - {"confidence", "story", "waits"}
        if getattr(call.func, "id", "") == "not_atomic":  # of a region, in any form that names no more than this
            terms |= {"region", "use"}
            named.update((name, terms) for name, form in rule.forms.items() if form.terms - {"at", "fn"} <= terms)
            continue
        form = ast.literal_eval(call.args[2]) if len(call.args) > 2 else "found"
        assert form in rule.forms, f"line {call.lineno} finds {form!r}, for which {rule.name} has no sentences"
        needed = rule.forms[form].terms - {"at", "fn"}
        assert terms == needed, f"line {call.lineno} carries {sorted(terms)}, and the sentences name {sorted(needed)}"
        named.setdefault(form, set()).update(terms)
    assert named.keys() == rule.forms.keys(), "a form that nothing finds"


def test_the_files_of_a_family_find_its_rules_and_take_nothing_from_each_other() -> None:
    functions = [function for rule in RULES.values() if (function := own_function(rule)) is not None]
    modules = {function.__module__ for function in functions}
    for family in FAMILIES:
        for file in Path(RULES_FOLDER, family.package.rpartition(".")[2]).glob("[!_]*.py"):
            assert f"{family.package}.{file.stem}" in modules, f"{file.name} finds no rule"
            imports = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
            taken = {name for n in imports for name in (n.module, *(f"{n.module}.{a.name}" for a in n.names))}
            assert not modules & taken, file.name


def test_a_deadlock_reads_as_everywhere_else() -> None:
    (found,) = check_text("order.py", RULES["PC101"].bad)
    assert found.explanation().splitlines() == [
        "    1. thread A  line 9: Account.pay takes Account._books",
        "    2. thread A  line 10: Account.pay waits for Account._cash, which thread B holds",
        "    3. thread B  line 14: Account.audit takes Account._cash",
        "    4. thread B  line 15: Account.audit calls self._count()",
        "    5. thread B  line 18: Account._count waits for Account._books, which thread A holds",
        "  => deadlock: thread A waits for thread B, which waits for thread A",
        "  => take Account._books and Account._cash in one order everywhere, or release the first before the second",
    ]


def test_it_brings_no_torch() -> None:
    program = (
        "import sys\n"
        "from paceline.interfaces.cli import check\n"
        "from paceline.concurrency.check.run import check_paths\n"
        "from paceline.concurrency.check.options import Options\n"
        "from paceline.concurrency.check.reporting.formats import FORMATS\n"
        "from pathlib import Path\n"
        "report = check_paths([Path('paceline/concurrency/check/reporting')], Options(cache=False))\n"
        "[say(report) for say in FORMATS.values()]\n"
        "assert report.files > 1\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "src", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"), [(["check", "job.py"], 1, "PC101"), (["train", "digits"], 2, "paceline[train]")]
)
def test_the_command_where_nothing_heavy_is_installed(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import threading\na, b = threading.Lock(), threading.Lock()\n\ndef one():\n    with a:\n        with b:\n"
        "            pass\n\ndef two():\n    with b:\n        with a:\n            pass\n\n"
        "threading.Thread(target=one).start()\nthreading.Thread(target=two).start()\n"
    )
    program = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'pyarrow', 'cloudpickle', 'safetensors', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        f"sys.argv = ['paceline', *{words}]\n"
        "from paceline.interfaces.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
