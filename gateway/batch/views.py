"""Files and batches as OpenAI's clients expect them."""

from typing import Any

from gateway.batch.lines import Fault
from gateway.batch.record import Batch, StoredFile


def file_view(file: StoredFile) -> dict[str, Any]:
    """OpenAI's file object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "expires_at": _instant(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_view(batch: Batch) -> dict[str, Any]:
    """OpenAI's batch object."""
    counts, tokens = batch.counts, batch.counts.tokens
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": _errors(batch.errors),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_at),
        "in_progress_at": _instant(batch.in_progress_at),
        "expires_at": int(batch.expires_at),
        "finalizing_at": _instant(batch.finalizing_at),
        "completed_at": _instant(batch.completed_at),
        "failed_at": _instant(batch.failed_at),
        "expired_at": _instant(batch.expired_at),
        "cancelling_at": _instant(batch.cancelling_at),
        "cancelled_at": _instant(batch.cancelled_at),
        "request_counts": {
            "total": batch.total,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "usage": {
            "input_tokens": tokens.input,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens.input + tokens.output,
        },
        "metadata": None if batch.metadata is None else dict(batch.metadata),
    }


def page(views: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A list of at most `limit`, of which one more was asked for to know whether there is more."""
    shown = views[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(views) > limit,
    }


def _errors(faults: tuple[Fault, ...]) -> dict[str, Any] | None:
    if not faults:
        return None
    return {
        "object": "list",
        "data": [
            {
                "code": fault.code,
                "line": fault.line,
                "message": fault.message,
                "param": fault.param,
            }
            for fault in faults
        ],
    }


def _instant(at: float | None) -> int | None:
    return None if at is None else int(at)
