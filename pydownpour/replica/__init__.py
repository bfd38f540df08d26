"""The session a training loop uses: background push and fetch, leased work, exact settlement.

Two threads, loosely coupled, as in the paper's client: the user's code computes in its own; the
``session`` lives on an event loop of its own and pushes, fetches and reports in the background.

    replica.py   what the user's function gets: parameters, work, step
    work.py      leased units and their completion
    portal.py    how the two threads reach each other
    session.py   pushes in flight, fetches, heartbeats: everything that needs the network
    link.py      one shard: connect, send, settle, reconnect, resend
    stream.py    one connection
    run.py       join, run a job's function, leave
"""
