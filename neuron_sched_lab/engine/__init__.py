"""A live vLLM engine to feed, step and watch; its records, its replays and what makes it stall."""
