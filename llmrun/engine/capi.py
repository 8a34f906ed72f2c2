"""The only door to llama.cpp: the binding module, its log, its abort handler and ggml's own functions.

Only the binding's C interface is imported, under an empty parent package: the package's own `__init__` brings
numpy, jinja2 and the chat formats, which costs three times as much start-up.
"""

import ctypes
import functools
import importlib
import importlib.util
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrun.errors import EngineError
from llmrun.machine.devices import Device, DeviceKind

LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_CONTINUED = 1, 2, 3, 4, 5  # enum ggml_log_level
# enum ggml_backend_dev_type, ggml/include/ggml-backend.h
_DEVICE_KINDS: dict[int, DeviceKind] = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}


class Log:
    """llama.cpp's log: the last lines are kept for error messages, all go to `sink` when one is set.

    `raw` gets each text as it comes: some lines are logged in pieces that say more before they end.
    """

    def __init__(self) -> None:
        self.lines: deque[tuple[int, str]] = deque(maxlen=4000)
        self.sink: Callable[[int, str], None] | None = None
        self.raw: Callable[[str], None] | None = None

    def add(self, level: int, text: str) -> None:
        if self.raw is not None:
            self.raw(text)
        if level == LOG_CONTINUED and self.lines:
            level, start = self.lines.pop()
            text = start + text
        self.lines.append((level, text))
        if self.sink is not None and text.endswith("\n"):
            self.sink(level, text.rstrip("\n"))

    def errors(self) -> list[str]:
        """What llama.cpp said went wrong, oldest first, without its function-name prefixes."""
        said = []
        for level, text in self.lines:
            where, _, what = text.strip().partition(": ")
            if level == LOG_ERROR and (what or where):
                said.append(what if what and where.isidentifier() else text.strip())
        return said

    def last_error(self, otherwise: str) -> str:
        errors = self.errors()
        return errors[-1] if errors else otherwise


log = Log()
_raised: list[BaseException] = []
_callbacks: list[Any] = []  # ctypes callbacks must outlive the library's use of them


def _set_environment() -> None:
    # A short spin at OpenMP barriers: with busy neighbours the default spins a whole time slice away.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Without this an abort starts a debugger where one is installed.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")


@functools.cache
def lib() -> Any:
    """The module `llama_cpp.llama_cpp`, its backend initialised. Raises EngineError where it is not installed."""
    _set_environment()
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise EngineError("llama-cpp-python is not installed", "pip install llama-cpp-python")
    imported = "llama_cpp" in sys.modules
    if not imported:
        parent = types.ModuleType("llama_cpp")
        parent.__path__ = list(spec.submodule_search_locations)
        parent.__spec__ = spec
        sys.modules["llama_cpp"] = parent
    try:
        binding = importlib.import_module("llama_cpp.llama_cpp")
    except (OSError, RuntimeError, AttributeError) as error:
        raise EngineError(f"llama.cpp's library does not load: {error}", "llmrun doctor") from error
    finally:
        if not imported:
            del sys.modules["llama_cpp"]
    _install_callbacks(binding)
    binding.llama_backend_init()
    return binding


def _install_callbacks(binding: Any) -> None:
    @binding.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, _user_data: Any) -> None:
        try:
            log.add(level, text.decode("utf-8", "replace"))
        except BaseException as error:  # it cannot pass through the library's frames
            _raised.append(error)

    def give_up(message: bytes) -> None:
        # The process cannot go on: ggml calls abort() when this returns.
        os.write(2, b"error: llama.cpp gave up: " + message.strip() + b"\n")
        os.write(2, b"hint: the model file is likely damaged or not supported; llmrun doctor names this build\n")
        os._exit(1)

    on_abort = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(give_up)
    binding.llama_log_set(on_log, ctypes.c_void_p(0))
    _callbacks.extend([on_log, on_abort])
    set_abort = _find(binding, "ggml_set_abort_callback")
    set_abort.restype = ctypes.c_void_p
    set_abort(on_abort)


@contextmanager
def unheard() -> Iterator[None]:
    """Let llama.cpp log to nobody. It logs a line for each tensor, and each waits for the interpreter, which other
    threads keep busy: together that takes longer than the load of a small model."""
    binding = lib()
    # A C function that reads and changes nothing; what it is called with stays in the caller's registers.
    binding.llama_log_set(ctypes.cast(binding._lib.llama_max_devices, binding.llama_log_callback), None)
    try:
        yield
    finally:
        binding.llama_log_set(_callbacks[0], None)


def raise_pending() -> None:
    """Raise what was raised inside a callback during the last library call, such as a Ctrl-C."""
    if _raised:
        error = _raised[0]
        _raised.clear()
        raise error


def _find(binding: Any, name: str) -> Any:
    # The wheel holds several copies of libggml; only the ones libllama is linked to share its state.
    try:
        return getattr(binding._lib, name)
    except AttributeError:
        if sys.platform != "win32":
            raise EngineError(f"this llama.cpp build has no {name}", "llmrun doctor names the build") from None
    # Windows does not resolve through a library's own imports: ask the DLLs that are already loaded.
    for dll in ("ggml-base.dll", "ggml.dll", "ggml-cpu.dll"):
        function = getattr(ctypes.CDLL(dll), name, None)
        if function is not None:
            return function
    raise EngineError(f"this llama.cpp build has no {name}", "llmrun doctor names the build")


@functools.cache
def ggml(name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
    """A function of ggml itself, which the binding does not declare. Raises EngineError where it is missing."""
    function = _find(lib(), name)
    function.restype = restype
    function.argtypes = list(argtypes)
    return function  # type: ignore[no-any-return]


def devices() -> tuple[Device, ...]:
    """Every device the loaded build can compute on, the CPU included."""
    get = ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return tuple(_describe_device(get(i)) for i in range(ggml("ggml_backend_dev_count", ctypes.c_size_t)()))


def device_handles() -> dict[str, int]:
    """Device name -> ggml_backend_dev_t, for `llama_model_params.devices`."""
    get = ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    handles = [get(i) for i in range(ggml("ggml_backend_dev_count", ctypes.c_size_t)())]
    return {_describe_device(handle).name: handle for handle in handles}


def _describe_device(handle: int) -> Device:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    name = ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    description = ggml("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    kind = ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    size_p = ctypes.POINTER(ctypes.c_size_t)
    ggml("ggml_backend_dev_memory", None, ctypes.c_void_p, size_p, size_p)(handle, free, total)
    return Device(
        name(handle).decode("utf-8", "replace"),
        description(handle).decode("utf-8", "replace"),
        _DEVICE_KINDS.get(kind(handle), "accel"),
        total.value,
        free.value,
    )


def backends() -> tuple[str, ...]:
    """Names of the compiled-in backends, such as CPU, CUDA, Metal, RPC."""
    get = ggml("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = ggml("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    count = ggml("ggml_backend_reg_count", ctypes.c_size_t)()
    return tuple(name(get(i)).decode("utf-8", "replace") for i in range(count))


def version() -> str:
    """llama.cpp's own version text."""
    return str(lib().llama_version().decode("utf-8", "replace"))


def binding_version() -> str:
    """The release of llama-cpp-python."""
    from importlib import metadata

    return metadata.version("llama-cpp-python")


def library_dir() -> Path:
    """The folder libllama was loaded from (`LLAMA_CPP_LIB_PATH` moves it)."""
    return Path(lib()._base_path)


def cpu_features() -> tuple[str, ...]:
    """Names of the instruction sets and build options that the CPU backend uses: AVX2, REPACK, ..."""
    _, _, listed = system_info().partition("CPU :")
    pairs = (part.split("=") for part in listed.split("|"))
    return tuple(pair[0].strip() for pair in pairs if len(pair) == 2 and pair[1].strip() == "1")


def system_info() -> str:
    """CPU features and backends in use, as llama.cpp prints them."""
    return str(lib().llama_print_system_info().decode("utf-8", "replace")).strip()
