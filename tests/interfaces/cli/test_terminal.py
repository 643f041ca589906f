"""Names and lines of another person's files do nothing to the terminal that shows them."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress
from rich.table import Table

from paceline.interfaces.cli.terminal import PlainConsole
from paceline.names import visible
from paceline.text_table import TextList, TextTable
from paceline.training.jobs.pickling import announce_code
from tests.hostile_texts import NASTY, TERMINAL, shown_safely, spoiled
from tests.interfaces.cli.conftest import Command


def test_control_characters_are_shown_as_python_writes_them() -> None:
    assert visible("a\x1b[31mb\rc\u202ed\x9be\x00\udcff\tf\ng é 日本 \u200d") == (
        "a\\x1b[31mb\\rc\\u202ed\\x9be\\x00\\udcff\tf\ng é 日本 \u200d"
    )
    shown_safely(visible("".join(map(chr, range(0x3000))) + NASTY))


@pytest.mark.parametrize("terminal", [True, False])
def test_whatever_a_console_prints_is_plain(terminal: bool) -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=terminal, width=1000)
    table = Table(NASTY, title=NASTY)
    table.add_row(NASTY)
    for each in (NASTY, table, TextTable(NASTY, (NASTY,), ((NASTY,),)), TextList("", {NASTY: NASTY})):
        console.print(each, style="bold")
    with Progress(console=console, transient=True, disable=not terminal) as bar:  # which moves the cursor itself
        bar.add_task("x")
    printed = file.getvalue()
    assert "[/bold]" in printed  # brackets are no markup
    assert "\\x1b]0;owned" in printed
    assert ("\x1b[1m" in printed) == terminal
    assert "\x1b]0" not in printed
    assert "\x1b[2J" not in printed
    for text in (str(TextTable(NASTY, (NASTY,), ((NASTY,),))), str(TextList("", {NASTY: NASTY}))):
        shown_safely(text)


def test_findings_name_files_and_lines_of_anyone(folder: Path, command: Command) -> None:
    name = os.fsdecode(b"a\x1b[2J\xff[bold].py")
    (folder / name).write_text(
        "import threading\nlock = threading.Lock()\ndef f():\n    lock.acquire()\n    g('\x1b[2J')\n"
    )
    (folder / "broken\x1b[1A.py").write_text("def \x1b[2J(")
    for form in ("text", "concise", "github", "json", "sarif", "ruff"):
        done = command("check", "--everything", "--format", form, ".")
        assert done.code == 1
        shown_safely(done.out + done.err)


def test_runs_are_shown_plainly(folder: Path, command: Command) -> None:
    (folder / "job.py").write_text((folder / "job.py").read_text().replace("epochs=3", "epochs=1"))
    assert command("train", "job.py", "--engine", "virtual", "--plan", "gpipe:workers=1", "-q").code in (0, 2)
    assert command("train", "job.py", "--engine", "virtual", "-q", "--runs", "r").code == 0
    (run,) = (folder / "r").iterdir()
    record = json.loads((run / "run.json").read_text())

    def refused(record: Any) -> bool:
        (run / "run.json").write_text(json.dumps(record))
        ended = [command(words, str(run)) for words in ("draw", "report")]
        for done in ended:
            shown_safely(done.out + done.err)
            assert "Traceback" not in done.err
        return any(done.code for done in ended)

    assert len(list(spoiled(record, refused))) > 8
    (run / "run.json").write_text(json.dumps(record))
    shutil.move(run, odd := run.with_name(f"odd{TERMINAL.replace('/', '')}"))
    for words in (["report"], ["draw"], ["replay"]):
        done = command(*words, str(odd))
        shown_safely(done.out + done.err)


def test_what_runs_code_cannot_hide_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text("")
    announce_code(file, f"harmless.py\n\x1b[1A\x1b[2K{NASTY}")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    shown_safely(said)
