"""Checks of arguments, and the environment variables to set before vLLM is loaded."""
