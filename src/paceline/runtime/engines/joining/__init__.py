"""Machines that join a run by a code (`paceline train --open`, `paceline join`).

    parcel.py        what travels to a machine that joins: the job, the modules beside it, the small files that it
                     opens; and the packages that it imports, of which a machine may lack some
    open_nodes.py    the machine that trains: it lets others in, and gives each a rank
    guest.py         a machine that joins

The code itself is `runtime.links.pairing`'s. From then on a machine that joins is a node of the cluster engine, as one
that Ray has placed.
"""
