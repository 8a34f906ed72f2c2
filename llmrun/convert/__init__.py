"""A Hugging Face checkpoint to GGUF, without torch. Knows no engine: what it writes is read by others."""
