"""Messages and frames: bytes in, bytes out; no sockets.

``messages`` are the control plane's JSON bodies, ``frames`` the data plane's binary frames.
"""
