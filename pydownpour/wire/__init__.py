"""Messages and frames: bytes in, bytes out; no sockets.

What two roles know of each other is here.

    messages.py   the control plane: every JSON body, and its route
    frames.py     the data plane's binary frames, by name
    problems.py   errors across the wire, both ways
    proof.py      who may speak for whom: secrets that are computed, not kept
"""
