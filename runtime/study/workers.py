# Tests: test/runtime/study/test_explore.py
"""Where points run: processes of this machine, or the workers of a Dask scheduler.  Both are an `Executor`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from frustum.runtime.failures import UsageError
from frustum.runtime.study.point import warm

SECONDS_TO_CONNECT = 10
PRELOADED = ["frustum.runtime.model.build", "frustum.runtime.time.event_loop", "frustum.runtime.study.point"]


@contextmanager
def workers(scheduler: str | None) -> Iterator[tuple[Executor, int]]:
    """What runs points, and how many at a time; UsageError where the scheduler cannot be reached."""
    with _cluster(scheduler) if scheduler is not None else _processes() as found:
        yield found


@contextmanager
def _processes() -> Iterator[tuple[Executor, int]]:
    """As many as this process may use cores; they import the compiler once, and are ended where the run is."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ways = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in ways else "spawn")
    if "forkserver" in ways:
        context.set_forkserver_preload(PRELOADED)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=warm)
    try:
        yield pool, count
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise


@contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, int]]:
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "error: --scheduler needs the package distributed: pip install 'frustum[explore]'"
        ) from error
    try:
        client = Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"error: --scheduler {address}: cannot be reached: {error}") from error
    with client:
        count = sum(client.nthreads().values())
        if not count:
            raise UsageError(f"error: --scheduler {address}: it has no workers")
        yield client.get_executor(pure=False), count
