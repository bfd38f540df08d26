"""The shard service: admit, apply, acknowledge; serve fetches.

``gate`` says when an acknowledgement may go out, ``state`` is one shard without sockets, ``stream``
one replica's connection, ``service`` the process's life: offer itself to the coordinator, load,
serve, end.
"""
