"""Sockets: the only room that touches aiohttp.

``server`` listens, ``client`` asks, ``upgrade`` turns a request into a stream of frames on both
ends, ``access`` holds tokens, TLS and the rule about addresses.
"""
