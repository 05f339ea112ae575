"""The real scheduler classes on a virtual clock, with a model of what each step costs."""
