"""Opening images safely: decoding bounded in memory and time, formats, sizes."""
