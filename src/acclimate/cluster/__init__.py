"""The same adapters on many machines, with Ray. No other part of acclimate knows Ray."""
