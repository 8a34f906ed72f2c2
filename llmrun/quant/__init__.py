"""Smaller files of a model: types, importance matrices, mixes for a size."""
