"""What the process shows and hears: streams, notes and bars, Ctrl-C."""
