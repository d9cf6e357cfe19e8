"""The routes of all that the office keeps: policy, tiers, tenants, users, keys."""

from fastapi import APIRouter

from gateway.admin import keys, policy, tenants, tiers, users
from gateway.admin.office import Office


def routers(office: Office) -> list[APIRouter]:
    """One for each, in the order in which the document shows them."""
    return [each.router(office) for each in (policy, tiers, tenants, users, keys)]
