"""The panels of a dashboard, one module each."""
