"""Sockets: the only room that touches aiohttp.

Services reach the network through these alone.

    server.py        one listener: routes, tokens, limits, the answer to every error
    connections.py   one HTTP connection at it, from the moment it is accepted
    gate.py          who may hold one
    parser.py        which HTTP parser reads it
    bodies.py        bodies of requests: a known size, a pace, not too many
    noise.py         what strangers make a server say: a line a minute
    client.py        one peer's URL: ask it, stream to it, get its errors
    retry.py         the one way to try again
    upgrade.py       a stream of frames on a connection that began as a request
    writing.py       many buffers to a transport at once
    pace.py          whether a connection gets anywhere
    sockets.py       socket settings that matter
    access.py        addresses, tokens, TLS
    proxies.py       which proxy the environment names
    heartbeat.py     how a role says that it lives, and hears how the job stands
    waiting.py       for whom somebody waits, and why
    process.py       what a process says of itself
    reader.py        a job's parameters, without being one of its replicas
"""
