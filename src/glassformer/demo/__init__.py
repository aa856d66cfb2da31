"""The demonstration: dates in many languages to ISO 8601."""
