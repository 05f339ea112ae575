"""The model that ships with the kit, and prompts whose right answers are known."""
