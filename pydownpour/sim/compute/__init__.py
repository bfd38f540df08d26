"""What computing costs, and how plain functions run."""
