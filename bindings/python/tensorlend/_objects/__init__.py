"""Objects in lent memory: their layout, encoder and decoder."""
