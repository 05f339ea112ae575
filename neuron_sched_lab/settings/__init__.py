"""What is set and checked before anything is loaded."""
