"""The methods of others, each with the settings of its paper."""
