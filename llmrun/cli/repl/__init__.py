"""The parts of a conversation in the terminal: what is typed, commands, turns."""
