"""The wire: how processes of one run reach each other over TCP.

From the bytes upwards:

    frame        what travels: header, integers, body. It touches no socket
    stream, tls  a socket that never blocks, plain or encrypted
    connection   frames in and out, without blocking; a queue of what the socket did not take
    waiting      deadlines, silence, how a wait is cancelled; a thread that sends while the main thread computes
    handshake    who is at the other end. It touches no socket
    address      where a process can be reached
    credentials  how peers are authenticated, and at which addresses a process may listen with them; tls
    pending      the handshakes under way, and how many there may be
    hub          the event loop of a process with many peers, and the events that it returns
    meeting      how the ranks of a group get a connection each to each other, and which have one
    link         `Link` over these connections; `channel` likewise

docs/internals/wire.md has the format, the walk of a push, and what is refused.
"""
