"""Replicas that add up gradients among themselves (FireCaffe), instead of at shards."""
