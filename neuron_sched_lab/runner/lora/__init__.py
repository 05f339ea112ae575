"""LoRA adapters: their files, their place in a graph, and which of them are loaded."""
