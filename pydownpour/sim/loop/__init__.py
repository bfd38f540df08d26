"""Virtual time: an asyncio event loop and its callbacks."""
