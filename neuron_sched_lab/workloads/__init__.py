"""Who asks for how many tokens, and when: made up, or read from a public trace."""
