"""`python -m llmrun` is the `llmrun` command."""

from llmrun.cli import main

if __name__ == "__main__":
    main()
