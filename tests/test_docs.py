"""The README's program and the examples run; pictures are what `paceline draw` prints; links and tables are valid."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest
from typer.main import get_command

import paceline
from paceline.cli import app, register
from paceline.cli.environment import VARIABLES
from paceline.core.collectives import Collective
from paceline.core.rules import Averaging, Rule
from paceline.explain.drawing import draw
from paceline.plans.aliases import canonical
from paceline.plans.methods import Method
from paceline.plans.plan import RECIPES, Plan
from tests.adapters.test_adapters import EXAMPLES as ADAPTED
from tests.engines.cluster.nodes import free_port
from tests.scripts import finish, start, world
from tests.test_architecture import RULES

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
METHODS = (ROOT / "docs" / "reference" / "plans.md").read_text()


def blocks_of(page: Path) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert blocks
    return blocks


def run_blocks(page: Path, folder: Path) -> str:
    """Run a page's Python blocks as one program, and return what it prints."""
    return run_file("\n".join(blocks_of(page)), folder / "page.py")


def run_file(text: str, at: Path) -> str:
    """Run a program in a process that begins with PyTorch imported, and return what it prints."""
    at.write_text(text)
    (done,) = finish([start(at)], 400)
    assert done.code == 0, done.err
    return done.out


def test_the_readmes_program_runs(tmp_path: Path) -> None:
    run_blocks(ROOT / "README.md", tmp_path)


def run_here(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page's Python blocks as one program in this process, whose forkserver has PyTorch imported."""
    monkeypatch.chdir(folder)
    (folder / "page.py").write_text("\n".join(blocks_of(page)))
    runpy.run_path("page.py", run_name="__main__")


def test_the_new_method_works_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = ROOT / "docs" / "internals" / "new-method.md"
    printed = run_blocks(page, tmp_path)
    (shown,) = re.findall(r"```text\n(.*?)```", page.read_text(), re.S)
    assert shown in printed


@pytest.mark.parametrize("page", ["first-comparison", "from-torch", "kernels", "callbacks", "tuning", "compress"])
def test_a_pages_program_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(ROOT / "docs" / f"{page}.md", tmp_path, monkeypatch)


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    quiet = {**os.environ, "EXECUTE_TUTORIALS": "false", "NO_MKDOCS_2_WARNING": "1"}  # the theme's note on its future
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, env=quiet)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    reference = (tmp_path / "site" / "reference" / "python" / "index.html").read_text()
    assert (tmp_path / "site" / "search" / "search_index.json").is_file(), "the search needs no network"
    assert all(f"paceline.{name}" in reference for name in paceline._FACE)


DRAWN = METHODS + "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("how-it-works", "pipelines"))
PICTURES = re.findall(r"<!-- draw: (.*?) -->\n```text\n(.*?)```", DRAWN, re.S)


@pytest.mark.parametrize(("plan", "picture"), PICTURES, ids=[plan for plan, _ in PICTURES])
def test_a_picture_is_what_drawing_gives_now(plan: str, picture: str) -> None:
    assert picture == draw(Plan.parse(plan)) + "\n", "run `python docs/_site/pictures.py`"


@pytest.mark.parametrize("name", RECIPES)
def test_every_plan_is_explained_with_a_picture_and_all_its_options(name: str) -> None:
    section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", METHODS, re.S | re.M)
    assert section, f"docs/reference/plans.md has no section {name}"
    assert f"<!-- draw: {name}" in section[1]
    own = set(RECIPES[name].options) - {"workers", "threads"}
    options = section[1].partition("\nOptions: ")[2]
    assert {option for option in own if f"`{option}`" not in options} == set()
    row = re.search(rf"^\| `{name}` \|.*$", METHODS, re.M)
    assert row, f"docs/reference/plans.md has no row for plan {name}"
    assert {option for option in RECIPES[name].options if f"`{option}`" not in row[0]} == set()


def test_the_import_rules_of_the_design_are_those_of_the_architecture_test() -> None:
    table = (ROOT / "docs" / "internals" / "design.md").read_text().partition("may import of paceline")[2].partition("\n\n")[0]
    rows = {
        name: set(filter(None, allowed.replace("nothing", "").split(", ")))
        for names, allowed in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", table, re.M)
        for name in re.findall(r"`([^`]+)`", names)
    }
    assert {name: allowed for name, allowed in rows.items() if allowed != {"everything"}} == {
        name: allowed for name, allowed, _ in RULES
    }


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
LONG = ("first_comparison", "one_process_wins", "your_script")  # tutorials that time plans or start ranks


@pytest.mark.parametrize(
    "tutorial",
    [pytest.param(each, marks=[pytest.mark.soak] * (each.stem in LONG), id=each.stem) for each in TUTORIALS],
)
def test_tutorials_run(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(tutorial), run_name="__main__")


EXAMPLES = sorted(each for each in (ROOT / "examples").glob("*.py") if each.stem not in ADAPTED)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    assert len(example.read_text().splitlines()) < 100
    if example.stem != "ddp_script":
        run_file(example.read_text(), tmp_path / example.name)
        return
    (tmp_path / example.name).write_text(example.read_text())
    first, second = world(tmp_path / example.name, 2, port=free_port())  # as torchrun starts them
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert "2 processes, " in first.out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_promise_of_the_contract_names_its_tests() -> None:
    promises = re.findall(r"\*\*\(([a-f])\)(.*?)(?=\n\*\*\(|\n## )", (ROOT / "docs" / "internals" / "contract.md").read_text(), re.S)
    assert "".join(letter for letter, _ in promises) == "abcdef"
    for letter, promise in promises:
        assert "](../tests/" in promise, f"({letter}) names no test"


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the words of every command of Paceline that a page shows, in code or in a line."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    for line in re.findall(r"(?<![\w/.-])paceline ([a-z]+[^`\n|]*)", text):
        own = re.split(r" -- | +# |; | && | > ", line)[0]
        yield own.split()


def test_every_command_that_a_page_shows_exists_with_its_options_and_plans() -> None:
    register()
    known, shown, wrong = get_command(app), 0, []
    for page in (*PAGES, *TUTORIALS, *(ROOT / "benchmarks").rglob("README.md")):
        for words in commands_of(page):
            command, rest = known, words
            while rest and rest[0] in getattr(command, "commands", {}):
                command, rest = command.commands[rest[0]], rest[1:]
            if command is known:
                continue  # a sentence about Paceline
            shown += 1
            options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
            given = {word.partition("=")[0].rstrip(".,;:)\"'") for word in rest if re.match(r"--?[a-z]", word)}
            plans = [word for option, word in pairwise(rest) if option == "--plan"]
            names = {canonical(plan.partition(":")[0])[0] for plan in plans if plan.islower()}
            unknown = names - {*RECIPES, "auto"}
            wrong += [f"{page.name}: paceline {' '.join(words)}: {each}" for each in (given - options) | unknown]
    assert not wrong, "\n".join(wrong)
    assert shown > 150, "the pages show more commands than were found"


def test_every_environment_variable_is_documented() -> None:
    # Set by `compare --script` and by `watch` for the processes that they start.
    private = {"PACELINE_STAND_IN", "PACELINE_STEPS", "PACELINE_STACKS"}
    used = {name for path in (ROOT / "src").rglob("*.py") for name in re.findall(r"PACELINE_[A-Z_]+", path.read_text())}
    documented = set(re.findall(r"^\| `(PACELINE_\w+)`", (ROOT / "docs" / "reference" / "commands.md").read_text(), re.M))
    assert documented == used - private == set(VARIABLES)


@pytest.mark.parametrize(
    ("section", "protocol"),
    [
        ("A collective", Collective), ("A rule", Rule), ("An averaging rule", Averaging),
        ("A method of another kind", Method),
    ],
)  # fmt: skip
def test_contributing_names_the_members_of_a_protocol(section: str, protocol: type) -> None:
    found = re.search(rf"^### {section}\n.*?```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S | re.M)
    assert found is not None
    members = {name for name in vars(protocol) if not name.startswith("_")}
    assert set(re.findall(r"^(\w+)", dedent(found[1]), re.M)) == members
