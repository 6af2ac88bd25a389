"""A classification job: rows written as they come, resumable, with a report at the end."""
