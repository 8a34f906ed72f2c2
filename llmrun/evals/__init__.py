"""How good a model file is: perplexity, and divergence from a reference model."""
