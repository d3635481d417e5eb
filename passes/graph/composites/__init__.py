"""Operations that the graph has as one and files as several, or the other way round: found, or written out."""
