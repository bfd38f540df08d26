"""The shard service: admit, apply, acknowledge; serve fetches.

ARCHITECTURE.md tells a record's way through it.

    service.py    the process's life: offer itself, load, serve, end
    state.py      one shard without sockets: its store, its policy, its counts
    stream.py     one replica's connection
    turns.py      what peers may make it do in one turn of its loop
    rounds.py     the policy's rule at work: told, asked, obeyed
    switching.py  one version of the policy, and how a shard goes over to the next
    gate.py       when an acknowledgement may go out
    filling.py    a plane of the store, filled from another process
    handover.py   to another process, and from one
"""
