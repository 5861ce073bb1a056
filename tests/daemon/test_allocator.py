"""What was freed is there again without the kernel."""

import subprocess
import sys

_COUNT = """
import ctypes, resource, sys
if sys.argv[1] == "kept":
    from daemon.allocator import keep_freed_memory
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = (ctypes.c_size_t,), (ctypes.c_void_p,)
libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
def batch():
    pages = [libc.malloc(1 << 20) for _ in range(16)]
    for page in pages:
        libc.memset(page, 1, 1 << 20)
    for page in pages:
        libc.free(page)
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> int:
    command = [sys.executable, "-c", _COUNT, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_second_batch_needs_no_pages_of_the_kernel() -> None:
    assert _faults("kept") < 100 < _faults("returned")
