"""Questions that two or more passes ask: regions, bytes alive, bytes moved, cycles."""
