"""Settings of what is done about advice: what cannot work is refused, and no secret is shown."""

from pathlib import Path

import pytest

from gateway.settings import load_settings
from tests.support.loading import Loading

HOOK = "webhook: {url: 'https://hook.example/a?token=t0p', secret_env: HOOK}"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{sleep: true}", "autoscale.sleep: needs autoscale.drain"),
        ("{drain: true, min: 9}", "autoscale.min: 9 is more than scaling.max, 8"),
        ("{min: 0}", "autoscale.min: 0 is not allowed"),
        ("{webhook: {url: 'https://hook.example/a'}}", "autoscale.webhook.secret_env: is required"),
        ("{" + HOOK + "}", "autoscale.webhook.secret_env: the environment variable"),
        ("{webhook: {url: 'ftp://hook.example'}}", "must be like https://host/path"),
        ("{webhook: {url: 'https://me:t0p@hook.example'}}", "no credentials"),
        ("{webhook: {url: 'https://hook.example/#t0p'}}", "no fragment"),
        ("{webhook: {attempts: 99}}", "autoscale.webhook.attempts: 99 is not allowed"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(
    tmp_path: Path, section: str, said: str
) -> None:
    """An unsigned message, or one engine too few, is found out in production otherwise."""
    errors = Loading(tmp_path).errors(f"replicas: ['http://g:1']\nautoscale: {section}\n")
    assert any(said in error for error in errors), errors
    assert "t0p" not in "".join(errors)


def test_the_secret_comes_from_the_environment(tmp_path: Path) -> None:
    """A file that is in version control holds none."""
    file = tmp_path / "fairgate.yaml"
    file.write_text(f"replicas: ['http://g:1']\nautoscale: {{{HOOK}}}\n")
    settings = load_settings(config=file, environ={"HOOK": "s3cret"}, overrides={})
    assert settings.webhook_secret() == b"s3cret"
    assert "s3cret" not in repr(settings)
    bare = load_settings(config=None, environ={}, overrides={"replicas": ["http://g:1"]})
    assert bare.webhook_secret() == b""
