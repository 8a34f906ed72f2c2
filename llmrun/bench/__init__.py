"""How fast a model runs here, and what holds it back. Opening models is the caller's part."""
