"""What is in a GGUF file. Stdlib only; knows neither llama.cpp nor where models are kept."""
