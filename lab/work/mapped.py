#!/usr/bin/python3
"""Reads a file through a shared map from its first byte to its last, a mebibyte at a time; prints the seconds it took."""
import mmap, os, sys, time

buffer = memoryview(bytearray(1 << 20))
begun = time.perf_counter()
fd = os.open(sys.argv[1], os.O_RDONLY)
with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as m, memoryview(m) as view:
    for at in range(0, len(view), len(buffer)):
        part = view[at:at + len(buffer)]
        buffer[:len(part)] = part
        part.release()
os.close(fd)
print(time.perf_counter() - begun)
