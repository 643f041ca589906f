"""The wire: how processes of one run reach each other over TCP.

From the bytes upwards:

    frame        what travels: header, integers, body. It touches no socket
    stream, tls  a socket that never blocks, plain or encrypted
    connection   frames in and out, without blocking; a queue of what the socket did not take
    waiting      deadlines, silence, and how a wait is cancelled
    blocking     a connection for a thread that waits: requests and answers
    pump         a thread that sends heartbeats and what is queued while the main thread computes
    handshake    who is at the other end. It touches no socket
    address      where a process can be reached
    credentials  how peers are authenticated, and at which addresses a process may listen with them; tls, keys
    pending      the handshakes under way, and how many there may be; `candidate` is one
    hub          the event loop of a process with many peers; `events` are what it returns
    leaving      how a connection is closed so that nothing is lost that was sent before
    meeting      how the ranks of a group get a connection each to each other
    link         `Link` over these connections; `channel` and `membership` likewise

docs/internals/wire.md has the format, the walk of a push, and what is refused.
"""
