"""The commands about machines: `paceline keys`, `paceline join` and `paceline doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import console, print_json, saying

if TYPE_CHECKING:
    from paceline.runtime.engines.joining.guest import Offer


def keys(folder: options.KeyFolder, hosts: options.Hosts = None, days: options.Days = 365) -> None:
    """Make keys in FOLDER with which the machines of a cluster recognise each other, by TLS 1.3.

    Without --hosts there is one folder for all machines, FOLDER/node. With --hosts each machine has its own folder and
    can only answer by its own name; run the command again for machines that come later. The key of the authority,
    FOLDER/ca.key, stays here.
    """
    from paceline.runtime.links.tcp.tls import make_keys

    folders = make_keys(folder, hosts.split(",") if hosts else (), days)
    for each in folders:
        where = "every machine" if hosts is None else each.name
        console.print(f"{each}  copy it to {where}, and start with --keys there", soft_wrap=True)


def join(
    words: options.Code, yes: options.Yes = False, runs: options.Runs = Path("runs"), quiet: options.Quiet = False
) -> None:
    """Let this machine take part in a training on another one, which shows CODE.

    The job, the modules beside it and small files that it reads come from there, and are run here as this user: you are
    asked once. Under plans with servers (downpour, ssp, ...) and plans that sum gradients (ring, tree, ...) it may join
    at any time; under others (local_sgd, gossip, ...) the run waits for all machines, and none joins later. Ctrl-C
    leaves the run, which goes on without this machine. If the machine that leads is lost, another one leads; if it is
    this one, the run's folder is made in --runs, and others join here.
    """
    from paceline.runtime.engines.joining import guest

    door, code = guest.parse(words)
    plain = not console.is_terminal  # it would print an empty line
    with Progress(
        TextColumn("the job"), BarColumn(), DownloadColumn(), console=console, transient=True, disable=plain
    ) as bar:
        task = bar.add_task("", total=None, visible=False)

        def consents(offer: Offer) -> bool:
            if yes:
                console.print(_described(offer), soft_wrap=True)
                return True
            bar.stop()
            agreed = typer.confirm(
                f"{_described(offer)}\nMay code from {offer.host} run on this machine, as you?", err=True
            )
            bar.start()
            return agreed

        def progress(received: int, total: int) -> None:
            bar.update(task, completed=received, total=total, visible=received < total)

        joined = guest.visit_run(door, code, consents, progress, saying(quiet=False))
    runs = runs.absolute()
    with joined as guest_here:
        console.print(f"joined the run of {guest_here.offer.host} as rank {guest_here.vacancy.rank}; Ctrl-C leaves it")
        from paceline.interfaces.api.train import take_part
        from paceline.interfaces.callbacks.progress_bar import ProgressBar
        from paceline.interfaces.cli.train import report

        run = take_part(guest_here, runs, [ProgressBar("", quiet, console)])
        if run.path is not None:
            report(run)
        else:
            console.print("the run is done; the machine that leads it has its folder")


def _described(offer: Offer) -> str:
    files = f", {len(offer.files)} file{'s' * (len(offer.files) > 1)}" if offer.files else ""
    return f"{offer.host} trains {offer.job} by {offer.plan}: {offer.bytes / 1e6:.1f} MB{files}"


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
