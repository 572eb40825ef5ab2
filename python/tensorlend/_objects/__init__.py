"""Objects in lent memory: their layout, and what reads and writes it."""
