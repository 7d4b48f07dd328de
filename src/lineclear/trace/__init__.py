"""Traces: what load was, without what was said. Versioned events, their codec, figures, importers of public formats."""
