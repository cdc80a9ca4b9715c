"""How the calls of a script come here, and what they say: a dispatch mode and functions that are replaced, interrupts that
wait meanwhile, collectives and compiled parts, devices, the operators' tensors and storages, and names for messages."""
