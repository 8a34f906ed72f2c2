"""What a model needs of a machine's memory, and the settings with which it fits. Pure: reads and loads nothing."""
