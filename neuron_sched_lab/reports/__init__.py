"""Plots, tables and pages that show what came of an experiment."""
