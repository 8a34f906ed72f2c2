"""`llmrun rpc-worker`: offers this machine's memory and cores to a model that another machine runs."""

import os
import threading
from typing import Annotated

import typer

from llmrun.cli.options import OutputOptions, setting, with_groups
from llmrun.errors import LlmrunError, UsageError

LOOPBACK = ("127.0.0.1", "localhost")
DEFAULT_PORT = 50052
STARTED_S = 0.5  # a port that is taken has been refused by then


@with_groups
def command(
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = LOOPBACK[0],
    port: Annotated[int, typer.Option("--port", help="TCP port.")] = DEFAULT_PORT,
    threads: Annotated[int | None, setting("-t --threads", "CPU threads.")] = None,
    output: OutputOptions,
) -> None:
    """Offer this machine to another one, which runs `llmrun run MODEL --rpc HOST:PORT`. Ctrl-C ends it.

    There is no authentication and no encryption: whoever reaches the port may use it.
    """
    if not 0 < port < 65536:
        raise UsageError(f"--port {port} is no TCP port")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads} is less than 1")
    from llmrun.cli.terminal import streams
    from llmrun.engine.offload import require_rpc, serve
    from llmrun.machine.cores import read_cores

    require_rpc()
    if host not in LOOPBACK:
        streams.say(f"{host} is open to others, and there is no authentication: use it on a trusted network only")
    # llama.cpp's server prints to stdout, which is for answers.
    os.dup2(2, 1)
    ended: list[LlmrunError] = []

    def run() -> None:
        try:
            serve(host, port, threads or read_cores().usable)
        except LlmrunError as error:
            ended.append(error)

    # In a thread, since Ctrl-C does not reach Python while the main thread is inside the library.
    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(STARTED_S)
    if worker.is_alive():
        streams.say(f"listening on {host}:{port}; use it with --rpc {host}:{port}")
    while worker.is_alive():
        worker.join(0.2)
    raise ended[0] if ended else LlmrunError("the RPC worker ended")
