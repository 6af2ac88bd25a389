"""The methods of this library."""
