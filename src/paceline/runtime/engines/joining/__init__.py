"""Machines that join a run by a code (`paceline train --open`, `paceline join`).

    opened_files.py  which files of the user a job opens while it is read and tried
    parcel.py        what travels to a machine that joins: the job, the modules beside it, small files
    packages.py      the packages that a job imports, and those that a machine lacks
    open_nodes.py    the machine that leads: it lets others in, and gives each a rank
    guest.py         a machine that joins

The code itself is `runtime.links.pairing`'s. From then on a machine that joins is a node of the cluster engine, as one
that Ray has placed.
"""
