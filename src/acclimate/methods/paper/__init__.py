"""The systems of the TDA paper: zero-shot, TDA, and those that it is compared with."""
