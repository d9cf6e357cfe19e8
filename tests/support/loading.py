"""Settings in tests: loaded from text, never from the real environment."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, load_settings
from gateway.tenancy.keys import key_hash

REPLICA = "replicas: [http://127.0.0.1:8000]\n"
KEY, OTHER_KEY = b"fg-a-made-up-key", b"fg-another"
SHA, OTHER_SHA = key_hash(KEY), key_hash(OTHER_KEY)


class Loading:
    """Loads settings from text, variables and options, without touching the real environment."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "fairgate.yaml"

    def __call__(
        self, text: str = REPLICA, *, environ: Mapping[str, str] | None = None, **overrides: object
    ) -> Settings:
        self._path.write_text(text)
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        return load_settings(config=self._path, environ=environ or {}, overrides=dotted)

    def errors(self, text: str, *, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """The faults that loading `text` lists."""
        with pytest.raises(SettingsError) as caught:
            self(text, environ=environ)
        return caught.value.errors
