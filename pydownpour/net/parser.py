"""Which HTTP parser aiohttp uses."""

from __future__ import annotations

from aiohttp import http_parser

from pydownpour.errors import ConfigError


def check() -> None:
    """Refuse aiohttp's pure-Python parser: it is slow, and has had request-smuggling faults.

    Raises:
        ConfigError: it is the one in use.
    """
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise ConfigError(
            "aiohttp runs without its C extensions here (AIOHTTP_NO_EXTENSIONS is set, or it was "
            "built without them); its pure-Python parser is not safe to use: unset the variable, "
            "or install aiohttp from a wheel"
        )
