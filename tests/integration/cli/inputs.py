"""Small inputs for commands that plan."""


def training_graph(name, layers, op_ns, value_bytes=4 << 20):
    """Activations that wait for their backward op."""
    storages = [{"id": i, "name": f"a{i}", "bytes": str(value_bytes), "kind": "ACTIVATION"} for i in range(layers)]
    ops = [{"id": i, "name": f"f{i}", "durationNs": str(op_ns), "reads": [i - 1] if i else [], "writes": [i]}
           for i in range(layers)]
    ops += [{"id": layers + i, "name": f"b{i}", "durationNs": str(op_ns), "reads": [layers - 1 - i]}
            for i in range(layers)]
    return {"version": 1, "name": name, "storages": storages, "ops": ops}


def link(bytes_per_s):
    return {"bytesPerS": str(bytes_per_s), "latencyNs": "5000"}


def node(bytes_per_s, shared_bytes_per_s, **more):
    """The hardware of ranks that share one link to local DDR."""
    return {"name": "node", "localDdr": {"capacityBytes": str(1 << 30), "read": link(bytes_per_s), "write": link(bytes_per_s)},
            "links": [{"name": "root", "readBytesPerS": str(shared_bytes_per_s), "writeBytesPerS": str(shared_bytes_per_s)}],
            "paths": [{"localDdr": ["root"]}], **more}
