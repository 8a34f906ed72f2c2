"""How fast a device's memory is: the time of copies within it. Knows no model."""

import ctypes
import time

from llmrun.engine import capi

_F32 = 0  # enum ggml_type
_MAX_BYTES = 256 << 20  # of each half; larger than any cache
_LEAST_S = 0.05


class _InitParams(ctypes.Structure):
    """struct ggml_init_params, which the binding does not declare."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def device_bandwidth(name: str) -> float:
    """Bytes per second, each copied byte counted as read and as written; 0.0 where the device is not there, cannot
    copy, or has no room for two blocks."""
    handles = capi.device_handles()
    free_bytes = {device.name: device.free_bytes for device in capi.devices()}.get(name, 0)
    n_bytes = min(_MAX_BYTES, free_bytes // 8) // 4 * 4
    if name not in handles or n_bytes <= 0:
        return 0.0
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    overhead = capi.ggml("ggml_tensor_overhead", size)()
    context = capi.ggml("ggml_init", pointer, _InitParams)(_InitParams(4 * overhead, None, True))
    backend = capi.ggml("ggml_backend_dev_init", pointer, pointer, ctypes.c_char_p)(handles[name], None)
    try:
        make = capi.ggml("ggml_new_tensor_1d", pointer, pointer, ctypes.c_int, ctypes.c_int64)
        source, target = (make(context, _F32, n_bytes // 4) for _ in range(2))
        buffer = capi.ggml("ggml_backend_alloc_ctx_tensors", pointer, pointer, pointer)(context, backend)
        if not buffer:
            return 0.0
        try:
            return 2 * n_bytes / _copy_s(backend, source, target)
        finally:
            capi.ggml("ggml_backend_buffer_free", None, pointer)(buffer)
    finally:
        if backend:
            capi.ggml("ggml_backend_free", None, pointer)(backend)
        capi.ggml("ggml_free", None, pointer)(context)


def _copy_s(backend: int, source: int, target: int) -> float:
    """Seconds of one copy; the first ones bring the memory in and wake the device."""
    pointer = ctypes.c_void_p
    copy = capi.ggml("ggml_backend_tensor_copy", None, pointer, pointer)
    wait = capi.ggml("ggml_backend_synchronize", None, pointer)
    n_copies = 1
    while True:
        started = time.perf_counter()
        for _ in range(n_copies):
            copy(source, target)
        wait(backend)
        took = time.perf_counter() - started
        if n_copies > 1 and took >= _LEAST_S:
            return took / n_copies
        n_copies *= 2
