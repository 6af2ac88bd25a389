"""Methods that back-propagate through a text tower. PyTorch is imported where they run, not where they are listed."""
