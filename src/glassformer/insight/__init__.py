"""What attention does inside a model, and what follows from it."""
