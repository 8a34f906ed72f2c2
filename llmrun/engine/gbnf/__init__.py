"""GBNF, llama.cpp's grammar notation: reading it, and the parts that write it. Knows no JSON Schema."""
