"""Files that forget what was not synced."""
