def probe_bytes(shape, s): return 0
