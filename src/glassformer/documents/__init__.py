"""Documents that are translated in place: XLIFF, TMX, PO, subtitles and JSON, all other bytes as they were."""
