"""The first half of the walk: read ahead, prepare, encode."""
