"""The command `paceline doctor`."""

from __future__ import annotations

from pathlib import Path

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console
from paceline.interfaces.cli.output import print_json


def doctor(
    to: options.DoctorTo = None,
    listen: options.DoctorListen = False,
    runs: options.Runs = Path("runs"),
    json: options.Json = False,
) -> None:
    """Look for what would keep a run on several machines from starting, or make it slow, and say what to do about it.

    The way to another machine needs an answer there: `paceline doctor --listen` on that one, then `paceline doctor --to
    HOST` here. The exit code is 1 if something keeps a run from working.
    """
    from paceline.runtime.doctor import Finding, Grade, machine, way
    from paceline.runtime.links.tcp.address import Address

    if listen:
        ready = "waiting for `paceline doctor --to` this machine, once; Ctrl-C ends it"
        visitor = way.answer("", lambda address: console.print(f"{ready} (port {address.port})", style="dim"))
        console.print(f"{visitor} has looked at this machine; what it found is shown there")
        return
    findings: list[Finding] = []
    colours = {Grade.GOOD: "green", Grade.NOTE: "yellow", Grade.FAULT: "red"}
    findings += machine.examine(runs)
    if to is not None:
        findings += way.examine(Address.parse(to if ":" in to else f"{to}:{way.PORT}"))
    for each in findings:
        console.print(f"{each.grade.value:5}  {each.name:9}  {each.text}", style=colours[each.grade], soft_wrap=True)
        if each.remedy:
            console.print(f"{'':18}{each.remedy}", soft_wrap=True)
    wrong = any(each.grade is Grade.FAULT for each in findings)
    if json:
        print_json({"findings": [each._asdict() for each in findings], "works": not wrong})
    raise typer.Exit(int(wrong))
