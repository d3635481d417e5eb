"""One unit of tiles becomes instructions."""
