"""What the package has of a pool of memory, without PyTorch: the C API over ctypes, and on it KV blocks, published objects,
the layouts of their tensors, planned programs, and notices of nodes that end. Connectors need no more."""
