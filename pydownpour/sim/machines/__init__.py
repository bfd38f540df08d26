"""A machine of a world and the processes on it."""
