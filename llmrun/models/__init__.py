"""Which file does this name mean? References, catalogue, store and sources."""
