"""The steps from a prompt on the command line to an answer on it."""
