"""The command `paceline keys`."""

from __future__ import annotations

from paceline.interfaces.cli import options
from paceline.interfaces.cli.console import console


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
