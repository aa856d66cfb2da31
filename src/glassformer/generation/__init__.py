"""From a source to its translations: search over ids, and the translator around it."""
