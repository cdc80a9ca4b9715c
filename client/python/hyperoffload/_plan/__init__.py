"""From a step to its plan: the recorder, the graph that it makes, `hyperoffload analyze` on that, the plan and its file.
Checks what people give to fit(), record() and analyze()."""
