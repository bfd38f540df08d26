"""What must hold, looked at while a world runs and at its end."""
