"""What a run recorded, and the figures computed from it. Plain data: no vLLM is loaded."""
