"""What this computer has: cores, quota, load, memory, GPUs, memory bandwidth. Knows no model and no engine.

Deliberately empty: a run reads only `cores`, `load` and `threads`, and start-up counts.
"""
