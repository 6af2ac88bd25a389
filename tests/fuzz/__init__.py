"""A seeded fuzzer of images, request bodies and state files; `tests/test_fuzz.py` runs it."""
