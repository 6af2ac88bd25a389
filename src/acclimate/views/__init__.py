"""Views: many looks at one image, and how they become one piece of evidence."""

from acclimate.views.reduce import REDUCERS

__all__ = ["REDUCERS", "VERSION"]

VERSION = 1  # of the views: counts up whenever the same seed would give other views
