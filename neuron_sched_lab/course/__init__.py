"""What a lesson needs: its exercises and their checks, and what a notebook shows."""
