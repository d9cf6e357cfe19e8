"""The outputs of a batch, put together from what its parts have put out.

Of a batch that was cut short, the lines that did not run get a line in the file of errors, so that
each line of the input is in one of the two, once.
"""

from collections.abc import AsyncIterator
from secrets import token_hex

from gateway.batch.files import Files, Writer
from gateway.batch.outcome import line_not_run, request_id
from gateway.batch.reading import PartReader, Slices
from gateway.batch.record import Batch, StoredFile
from gateway.batch.store import Piece, Rest

PURPOSE = "batch_output"


class Outputs:
    """Writes the two files of one batch."""

    def __init__(self, files: Files, batch: Batch, *, now: float, keep_s: float) -> None:
        self._files = files
        self._batch = batch
        self._now = now
        self._keep_s = batch.output_expires_after_s or keep_s
        self._written: list[Writer] = []

    async def written(
        self, pieces: list[Piece], rests: list[Rest], *, file: StoredFile
    ) -> tuple[StoredFile | None, StoredFile | None]:
        """The files of outputs and of errors, each None where it would be empty; `file`: the input.

        Raises FilesError; then nothing is left behind.
        """
        try:
            outputs = await self._file("output", self._pieces(pieces, is_errors=False))
            unrun = self._unrun(rests, file)
            errors = await self._file("error", self._pieces(pieces, is_errors=True), unrun)
        except BaseException:
            await self.abandon()
            raise
        return outputs, errors

    async def abandon(self) -> None:
        """They are not wanted. What cannot be removed now is swept later."""
        written, self._written = self._written, []
        for writer in written:
            await writer.abandon()

    async def _file(self, word: str, *texts: AsyncIterator[bytes]) -> StoredFile | None:
        file_id = f"file-{token_hex(12)}"
        writer = self._files.writer(file_id)
        self._written.append(writer)
        for text in texts:
            async for data in text:
                await writer.write(data)
        if not writer.size:
            await writer.abandon()
            return None
        await writer.close()
        return StoredFile(
            id=file_id,
            owner=self._batch.owner,
            name=f"{self._batch.id}_{word}.jsonl",
            purpose=PURPOSE,
            size=writer.size,
            created_at=self._now,
            expires_at=self._now + self._keep_s,
            object=file_id,
        )

    async def _pieces(self, pieces: list[Piece], *, is_errors: bool) -> AsyncIterator[bytes]:
        for piece in pieces:
            if piece.is_errors is is_errors:
                async for data in self._files.slices(piece.object, piece.size):
                    yield data

    async def _unrun(self, rests: list[Rest], file: StoredFile) -> AsyncIterator[bytes]:
        for rest in rests:
            slices = Slices(self._files, file, start=rest.start)
            reader = PartReader(slices, done=rest.done)
            while not reader.is_over:
                requests = await reader.next()
                yield b"".join(
                    line_not_run(
                        request_id(self._batch.id, rest.first + index),
                        line.custom_id,
                        self._batch.ends_as,
                    )
                    for index, line in requests
                )
