"""Sockets: the only room that touches aiohttp.

``server`` listens, ``client`` asks, ``upgrade`` turns a request into a stream of frames on both
ends, ``heartbeat`` says that a role lives, ``waiting`` for whom it waits, ``proxies`` what is on
the way, ``reader`` gets a job's parameters without being one of its replicas. ``access`` holds
tokens, TLS and the rule about addresses.
"""
