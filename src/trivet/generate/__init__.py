"""Sessions, sampling and the user's `Model`: from a checkpoint to text."""
