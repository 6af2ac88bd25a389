"""Per-class caches of a stream's most useful samples: who enters (`schedule`) and what they say (`store`)."""
