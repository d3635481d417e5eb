"""What cores do with a piece of a layer, by its operation."""
