"""Views: many augmented versions of one image."""

VERSION = 1  # of the views: raised whenever the same seed would give other views
