"""Documents that are translated in place, all other bytes as they were: XLIFF, TMX, PO, subtitles, JSON, web pages."""
