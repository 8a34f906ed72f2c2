"""One file per architecture family, holding only its differences from `llmrun.convert.model`."""
