"""Distinguishes a cancelled task from one that waited for something that was cancelled."""

import asyncio


def is_cancelled() -> bool:
    """Return True iff it is the present task that is being cancelled.

    False where `CancelledError` comes from what it waited for, as a watch whose store was closed:
    that must not end a task which nobody cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
