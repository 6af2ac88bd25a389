"""The HTTP service: streams that adapt, each for itself, and survive restarts."""
