"""Damage to what a daemon left."""
import fcntl
import mmap
import os

SEAL, SHRINK, GROW = 1, 2, 4  # for F_ADD_SEALS
ADD_SEALS, GET_SEALS = 1033, 1034
LOG_AT = 64 + 4096 * 8  # in a manifest


def memory(size, seals):
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, ADD_SEALS, seals)
    return descriptor


def replace(store, name, descriptor):
    """In place of the one of that name, or beside all."""
    for i, (one, old) in enumerate(store):
        if one == name:
            os.close(old)
            store[i] = (name, descriptor)
            return
    store.append((name, descriptor))


def flip_manifest(store):
    """One bit of the first record of each."""
    for name, descriptor in store:
        if name.startswith("m"):
            with mmap.mmap(descriptor, 0) as manifest:
                manifest[LOG_AT + 26] ^= 4
