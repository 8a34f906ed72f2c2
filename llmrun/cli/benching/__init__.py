"""`llmrun bench` beyond its flags: what is run, and how results are shown."""
