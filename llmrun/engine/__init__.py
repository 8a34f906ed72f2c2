"""Owners of llama.cpp's objects, and the policy that runs requests over them."""
