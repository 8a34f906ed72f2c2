"""From a reference to a loaded engine: joins models, plan, chat and engine, which do not know each other."""
