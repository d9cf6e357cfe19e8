"""Versions over HTTP: `ETag`, `If-Match`, and who did what by which request."""

from fastapi import Request, Response
from pydantic import BaseModel

from gateway.admin.door import REQUEST_ID, WHO
from gateway.admin.objections import PreconditionRequiredError
from gateway.admin.problems import PreconditionFailedError
from gateway.errors import BadRequestError
from gateway.tenancy.store.port import Deed

TAGS_MAX = 64
"""In one `If-Match`."""
ANY = "*"


def tag_of(version: int | str) -> str:
    """A version as it stands in `ETag`."""
    return f'"{version}"'


def tell(response: Response, version: int | str) -> None:
    """Say which version is answered."""
    response.headers["etag"] = tag_of(version)


def answered(view: BaseModel, status: int, version: int) -> Response:
    """What was made or changed, as an answer."""
    response = Response(view.model_dump_json(), status, media_type="application/json")
    tell(response, version)
    return response


def require(request: Request, version: int | str, *, is_needed: bool = False) -> None:
    """Go on only if `If-Match` has this version.

    Raises PreconditionFailedError; where it `is_needed` and missing, PreconditionRequiredError.
    """
    wanted = request.headers.get("if-match")
    if wanted is None:
        if is_needed:
            text = f"Say with If-Match which version is changed; it is {tag_of(version)} now."
            raise PreconditionRequiredError(text, param="If-Match")
        return
    tags = [tag.strip() for tag in wanted.split(",", TAGS_MAX)]
    if len(tags) > TAGS_MAX:
        raise BadRequestError(f"If-Match names more than {TAGS_MAX} versions.", param="If-Match")
    # A weak tag never matches: nobody says that two versions are about the same.
    if ANY not in tags and tag_of(version) not in tags:
        text = f"It is at version {tag_of(version)} now."
        raise PreconditionFailedError(text, param="If-Match")


def deed_of(request: Request, action: str, at: float) -> Deed:
    """Who does what, for the audit."""
    return Deed(at=at, who=request.scope[WHO], action=action, request_id=request.scope[REQUEST_ID])
