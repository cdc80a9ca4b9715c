"""Connectors of serving frameworks to the KV blocks of a pool: `lmcache`, `vllm`, `sglang`.

Each needs its framework only where that calls it, and nothing else but this package.
"""
