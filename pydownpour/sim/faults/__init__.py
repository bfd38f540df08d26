"""What can break, how often, and a peer with bad intentions."""
