"""Connections between hosts, and what may go wrong between them."""
