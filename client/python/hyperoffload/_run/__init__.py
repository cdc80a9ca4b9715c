"""Training under a plan: fit() and its run, the plans that steps take, the replay of one, calls beside it, how far steps
drift from it, and what the run has measured."""
