"""From messages to the text a model was trained on, and from its text back to reasoning and answer."""
