"""The pages: programs and commands print what is shown, pictures and tables are current, links lead somewhere."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from typer.main import get_command

import paceline
from paceline.algorithms.collectives import Collective
from paceline.algorithms.rules import Averaging, Rule
from paceline.concurrency.check.rules import RULES as CHECKED
from paceline.interfaces.cli import app, register
from paceline.interfaces.cli.environment import VARIABLES
from paceline.planning.explain.drawing import draw
from paceline.plans.plan import RECIPES, Plan
from paceline.plans.recipe import canonical
from tests.each import each
from tests.interfaces.adapters.test_adapters import EXAMPLES as ADAPTED
from tests.runtime.engines.cluster.nodes import free_port
from tests.scripts import finish, start, world

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
#: What a user reads; internals and reproductions may be long.
KINDS = ("tutorials", "how-to", "reference", "explanation")
USER = sorted(page for kind in KINDS for page in (DOCS / kind).glob("*.md"))
METHODS = (DOCS / "reference" / "plans.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


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
    page = DOCS / "internals" / "new-method.md"
    printed = run_blocks(page, tmp_path)
    assert re.findall(r"```text\n(.*?)```", page.read_text(), re.S)[0] in printed


PROGRAMS = (
    "tutorials/first-comparison",
    "tutorials/coming-from",
    "tutorials/replay-a-nan",
    "how-to/data",
    "how-to/runs",
    "how-to/tune",
    "how-to/export",
    "internals/kernels",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pages_program_runs_and_prints_what_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = DOCS / f"{name}.md"
    run_here(page, tmp_path, monkeypatch)
    printed = capfd.readouterr().out
    for shown in re.findall(r"<!-- prints -->\n```text\n(.*?)```", page.read_text(), re.S):
        assert shown in printed


def commands_with_output(page: Path) -> list[tuple[str, str]]:
    """Return the commands that a page shows with all of their output, and the output."""
    return re.findall(r"<!-- run: (.*?) -->\n```\w*\n(.*?)```", page.read_text(), re.S)


def tidy(printed: str) -> str:
    """Leave out what is another number in another process, and where lines are broken."""
    printed = re.sub(r"pid \d+", "pid N", re.sub(r"since \d\d:\d\d:\d\d \(\d+ s\)", "since T", printed))
    return " ".join(printed.split())


def matches(shown: str, printed: str) -> bool:
    """Whether the parts of what a page shows, between dots, are in what was printed, in this order."""
    pattern = ".*".join(re.escape(tidy(part)) for part in re.split(r"\.\.\.\n", shown))
    return re.search(pattern, tidy(printed), re.S) is not None


SHOWN = [
    pytest.param(page, command, shown, id=f"{page.stem}: {command}")
    for page in (ROOT / "README.md", *USER)
    for command, shown in commands_with_output(page)
]


@pytest.mark.parametrize(("page", "command", "shown"), SHOWN)
def test_a_command_prints_what_its_page_shows(page: Path, command: str, shown: str, tmp_path: Path) -> None:
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", page.read_text(), re.S):
        (tmp_path / name).write_text(text)
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    assert words[0] == "paceline"
    wide = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, env=wide
    )
    assert matches(shown, done.stdout + done.stderr), done.stdout + done.stderr


def test_dots_stand_for_anything_and_a_missing_part_is_noticed() -> None:
    assert matches("pid 12 waits\n...\ndone\n", "pid 4711  waits\nfor ever\ndone\n")
    assert not matches("pid 12 waits\n...\ndone\n", "pid 4711 waits\n")


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's note on its future
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, env=quiet)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    reference = (tmp_path / "site" / "reference" / "python" / "index.html").read_text()
    assert (tmp_path / "site" / "search" / "search_index.json").is_file(), "the search needs no network"
    assert all(f"paceline.{name}" in reference for name in paceline._FACE)
    assert (tmp_path / "site" / "reference" / "rules" / "PC404" / "index.html").is_file()
    assert '"workers"' in (tmp_path / "site" / "schemas" / "run.json").read_text()
    listed = re.findall(r"^- \[.*?\]\((.*?)\): \S", (tmp_path / "site" / "llms.txt").read_text(), re.M)
    assert len(listed) >= len(USER)
    assert all((tmp_path / "site" / place).is_file() for place in listed), "every page has a Markdown twin"


DRAWN = "".join(page.read_text() for page in DOCS.rglob("*.md"))
PICTURES = re.findall(r"<!-- draw: (.*?) -->\n```text\n(.*?)```", DRAWN, re.S)


@each(("plan", "picture"), PICTURES)
def test_a_picture_is_what_drawing_gives_now(plan: str, picture: str) -> None:
    assert picture == draw(Plan.parse(plan)) + "\n", "run `python docs/_site/pictures.py`"


@each("name", RECIPES)
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


LINKED = sorted({*PAGES, *(ROOT / "benchmarks").rglob("README.md")})


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).replace("`", "").lower() for each in headings)
    return {re.sub(r"[^\w\- ]", "", each).strip().replace(" ", "-") for each in plain}


@each("page", LINKED)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", FENCE.sub("", page.read_text())):
        if "://" in target:
            continue
        other = page.parent / target if target else page
        assert other.exists(), f"{page.name} links to {target}"
        if anchor and other.suffix == ".md":
            assert anchor in anchors(other), f"{page.name} links to {target}#{anchor}"


def navigation() -> list[tuple[str, list[tuple[str, str]]]]:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    sections = [item for entry in nav for item in entry.items() if isinstance(item[1], list)]
    return [(name, [pair for page in pages for pair in page.items()]) for name, pages in sections]


def site_module(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.syspath_prepend(str(DOCS / "_site"))
    return runpy.run_path(str(DOCS / "_site" / f"{name}.py"))


def test_the_navigation_has_every_user_page_and_llms_txt_describes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = navigation()
    places = {place for _, entries in sections for _, place in entries}
    assert {page.relative_to(DOCS).as_posix() for page in USER} <= places
    index = site_module("llms", monkeypatch)["index"]
    assert callable(index)
    texts = {page.relative_to(DOCS).as_posix(): page.read_text() for page in DOCS.rglob("*.md")}
    others = {"contributing.md": "CONTRIBUTING.md", "changes.md": "CHANGELOG.md"}
    others |= {"benchmarks/index.md": "benchmarks/README.md"}
    texts |= {place: (ROOT / source).read_text() for place, source in others.items()}
    lines = index("Paceline", "about", sections, texts).splitlines()
    assert sum(line.startswith("- [") for line in lines) == len(places)
    assert [line for line in lines if line.startswith("- [") and len(line.partition("): ")[2]) < 20] == []


def test_the_site_has_a_page_for_each_rule_of_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = site_module("reference", monkeypatch)["rule_pages"]
    assert callable(pages)
    assert {Path(place).stem for place in pages()} == set(CHECKED)
    assert all(text.startswith("# PC") and "Not reported:" in text for text in pages().values())


def test_the_readmes_figures_are_those_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = site_module("figures", monkeypatch)
    picture, readme = figures["picture"], figures["readme"]
    assert callable(picture)
    assert callable(readme)
    assert picture() == (DOCS / "pictures" / "speed.svg").read_text(), "run `python docs/_site/figures.py`"
    assert readme() == (ROOT / "README.md").read_text(), "run `python docs/_site/figures.py`"


def test_every_promise_of_the_contract_names_its_tests() -> None:
    contract = (DOCS / "internals" / "contract.md").read_text()
    promises = re.findall(r"\*\*\(([a-f])\)(.*?)(?=\n\*\*\(|\n## )", contract, re.S)
    assert "".join(letter for letter, _ in promises) == "abcdef"
    for letter, promise in promises:
        assert "](../../tests/" in promise, f"({letter}) names no test"


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the words of every command of Paceline that a page shows, in code or in a line."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    for line in re.findall(r"(?<![\w/.-])paceline ([a-z]+[^`\n|]*)", text):
        own = re.split(r" -- | +# |; | && | > ", line)[0]
        yield own.split()


def test_every_command_that_a_page_shows_exists_with_its_options_and_plans() -> None:
    register()
    known, shown, wrong = get_command(app), 0, []
    for page in (*PAGES, *(ROOT / "benchmarks").rglob("README.md")):
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
    # Set by `compare --script`, `verify --script` and `watch` for the processes that they start.
    private = {"PACELINE_STAND_IN", "PACELINE_STEPS", "PACELINE_FIRST_STEP", "PACELINE_STACKS"}
    used = {name for path in (ROOT / "src").rglob("*.py") for name in re.findall(r"PACELINE_[A-Z_]+", path.read_text())}
    documented = set(re.findall(r"^\| `(PACELINE_\w+)`", (DOCS / "reference" / "commands.md").read_text(), re.M))
    assert documented == used - private == set(VARIABLES)


@pytest.mark.parametrize(
    ("section", "protocol"),
    [
        ("A collective", Collective),
        ("A rule", Rule),
        ("An averaging rule", Averaging),
    ],
)
def test_contributing_names_the_members_of_a_protocol(section: str, protocol: type) -> None:
    found = re.search(rf"^### {section}\n.*?```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S | re.M)
    assert found is not None
    members = {name for name in vars(protocol) if not name.startswith("_")}
    assert set(re.findall(r"^(\w+)", dedent(found[1]), re.M)) == members


#: Runs the cells of a notebook as Jupyter does, and prints what the last expression of each shows.
IN_IPYTHON = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        result = shell.run_cell("".join(cell["source"]))
        result.raise_error()
        html = getattr(result.result, "_repr_html_", None)
        print("shown:", html() if html else result.result)
"""


@pytest.mark.parametrize("notebook", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda file: file.stem)
def test_the_cells_of_a_notebook_run_in_their_order(notebook: Path, tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", IN_IPYTHON, str(notebook)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "<table" in done.stdout  # of the comparison
    assert "shown: True" in done.stdout  # the repeated run has the same bits
