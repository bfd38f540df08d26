"""A job's world: its processes, how it is run, and small ones drawn by seed."""
