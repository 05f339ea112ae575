"""Is this machine ready, and does the kit run on its Trn2?"""
