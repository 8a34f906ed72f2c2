"""A checkpoint's tokenizer as GGUF metadata: one file per kind of vocabulary."""
