"""Every view of the console and all that can be done there, in a browser before a busy gateway."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.console.reader import Reader, reading
from tests.e2e.console.site import ADMIN, KEYS, Site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

OF_GAMMA = """[...document.querySelectorAll("tbody tr")]
    .every((row) => /waiting.*gamma/s.test(row.innerText))"""
VIEWS = ["Live", "Replicas", "Requests", "Policy", "Scaling", "Playground", "Batches"]


def test_a_wrong_key_is_told_and_the_right_one_opens(browser: Any, axe: Path, site: Site) -> None:
    """The first minute of every operator; and nobody finds the key in an address afterwards."""
    with reading(browser, site.url, axe=axe) as reader:
        page = reader.page
        page.goto(f"{site.url}/console")
        page.wait_for_selector("#key")
        assert page.evaluate("document.activeElement.id") == "key"
        assert (reader.faults(), reader.errors) == ([], [])
        reader.enter("wrong")
        assert "admin key" in reader.text("[role=alert]")
        assert [each for each in reader.errors if "403" not in each] == []
        reader.errors.clear()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        reader.enter(ADMIN)
        page.wait_for_selector("h1:text-is('Live')")
        page.reload()
        page.wait_for_selector("h1:text-is('Live')")
        assert not [url for url in asked if ADMIN in url]
        assert all(url.startswith(site.url) for url in asked), "nothing is asked elsewhere"
        assert page.evaluate("Object.keys(localStorage).join()") in ("", "fairgate.theme")
        page.click("text=Sign out")
        page.wait_for_selector("#key")
        assert page.evaluate("sessionStorage.length") == 0
        assert reader.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_shuts_anybody_out(browser: Any, axe: Path, site: Site, scheme: str) -> None:
    """Contrast, names, order of headings: whoever cannot see well is called at night as well."""
    with reading(browser, site.url, axe=axe, scheme=scheme) as reader:
        reader.enter(ADMIN)
        for view in VIEWS:
            reader.see(view)
            if view == "Requests":
                reader.page.click("tbody tr:last-child button.link")
                reader.page.wait_for_selector("[data-testid=summary]")
            assert reader.faults() == [], view
            wide = reader.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{view} is wider than its window"
        assert reader.page.evaluate("document.documentElement.dataset.theme") == scheme
        assert reader.errors == []


def test_a_phone_shows_it_too(browser: Any, axe: Path, site: Site) -> None:
    """Nobody has the large screen at hand at night."""
    size = {"width": 390, "height": 800}
    with reading(browser, site.url, axe=axe, viewport=size) as reader:
        reader.enter(ADMIN)
        for view in VIEWS:
            reader.see(view)
            wide = reader.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert (wide <= 0, reader.faults()) == (True, []), view
        assert reader.errors == []


def test_live_shows_tiers_tenants_and_both_charts(reader: Reader, site: Site) -> None:
    """Who waits, behind whom, and who has more than its part."""
    reader.see("Live")
    page = reader.page
    page.wait_for_selector(".chart canvas >> nth=1")
    waiting = int(reader.text("[data-testid=waiting]").split()[0].replace(",", ""))
    assert 0 < waiting <= site.ask("GET", "/overview")["waiting"] + 100
    assert page.locator("section:has(h2:text-is('Tiers')) tbody tr").count() == 4
    tenants = page.locator("section:has(h2:text-is('Tenants')) tbody tr")
    assert tenants.count() == len(KEYS)
    page.click("button[aria-expanded]:text-is('acme')")
    page.wait_for_selector("tr.under:has-text('standard')")
    assert tenants.count() > len(KEYS)
    assert "fair" in reader.text("section:has(h2:text-is('Tenants')) tbody")
    page.select_option("label:has-text('of') select", "beta")
    page.wait_for_selector("section:has-text('Share against') .legend >> text=beta")
    before = reader.text(".head p")
    reader.until("(before) => document.querySelector('.head p').innerText !== before", before)
    name = site.ask("GET", "/replicas")["data"][0]["name"]
    site.ask("POST", f"/replicas/{name}/drain")
    page.wait_for_selector(".events >> text=replica.draining")
    site.ask("POST", f"/replicas/{name}/undrain")
    page.wait_for_selector(".events >> text=replica.undrained")


def test_a_replica_is_drained_and_comes_back(reader: Reader, site: Site) -> None:
    """An upgrade begins here; and every shut gate says what shuts it."""
    reader.see("Replicas")
    page = reader.page
    name = site.ask("GET", "/replicas")["data"][0]["name"]
    card = f"[data-replica='{name}']"
    page.wait_for_selector(f"{card} tbody tr")
    assert page.locator(f"{card} tbody tr").count() == 4
    reader.text(f"{card} .facts").index("Engine queue")
    page.wait_for_selector(f"{card} tbody tr:has-text('closed') code")
    page.click(f"{card} button:has-text('Drain')")
    page.click("dialog[open] button:text-is('Leave it')")
    assert site.ask("GET", f"/replicas/{name}")["is_drained"] is False
    page.click(f"{card} button:has-text('Drain')")
    reader.confirm("Drain")
    page.wait_for_selector(f"{card} .badge:has-text('drain')")
    page.wait_for_selector(f"{card} code:text-is('unusable')")
    assert site.ask("GET", f"/replicas/{name}")["is_drained"] is True
    page.click(f"{card} button:has-text('Undrain')")
    page.wait_for_selector(f"{card} .badge:text-is('in use')")
    assert site.ask("GET", f"/replicas/{name}")["is_drained"] is False


def test_a_request_is_found_explained_and_ended(reader: Reader, site: Site) -> None:
    """`Where is my request?` with nothing but its id, or not even that."""
    reader.see("Requests")
    page = reader.page
    page.select_option("label:has-text('State') select", "waiting")
    page.fill("label:has-text('Tenant') input", "gamma")
    page.click("button:text-is('Search')")
    reader.until(OF_GAMMA)
    page.wait_for_selector("tbody tr >> nth=49")
    first = reader.text("tbody tr th")
    page.click("button:text-is('Next')")
    page.wait_for_selector("text=from 51 to 100")
    page.click("button:text-is('Previous')")
    page.wait_for_selector("text=from 1 to 50")
    ids = [each["id"] for each in site.ask("GET", "/requests?state=waiting&tenant=gamma")["data"]]
    assert first in ids
    wanted = ids[-1]
    page.fill("label:has-text('Request id') input", wanted)
    page.keyboard.press("Enter")
    reader.until("document.querySelectorAll('tbody tr').length === 1")
    page.click(f"button:text-is('{wanted}')")
    page.wait_for_selector("[data-testid=summary]:has-text('Position')")
    assert page.locator(
        "section:has(h2:has-text('Request')) h3:has-text('off each replica')"
    ).count()
    page.click("button:text-is('End it')")
    reader.confirm("End it")
    page.wait_for_selector(f"[role=status]:has-text('{wanted} is ended')")
    page.wait_for_selector("text=No such request is here now.")


def test_a_policy_is_tried_out_put_and_taken_back(reader: Reader, site: Site) -> None:
    """The one view in which a slip would be felt by everybody."""
    reader.see("Policy")
    page = reader.page
    weight = "input[aria-label='Weight of standard']"
    document = "textarea.code"
    page.wait_for_selector(weight)
    assert page.is_disabled("button:text-is('Apply')"), "nothing was changed"
    page.fill(document, "{")
    page.wait_for_selector("text=is no JSON")
    assert page.is_disabled("button:text-is('Dry run')")
    page.click("button:text-is('Take what is in force')")
    page.wait_for_selector(weight)
    page.fill(weight, "3")
    page.keyboard.press("Tab")
    reader.until("document.querySelector('textarea.code').value.includes('\"weight\": 3')")
    page.click("button:text-is('Dry run')")
    page.wait_for_selector(
        "section:has(h2:text-is('Dry run')) code:text-is('tiers.standard.weight')"
    )
    assert reader.faults() == []
    assert site.ask("GET", "/policy")["tiers"][2]["weight"] == 1.0, "it was only tried"
    page.click("button:text-is('Apply')")
    reader.confirm("Apply")
    page.wait_for_selector("text=The policy is in force.")
    assert site.ask("GET", "/policy")["tiers"][2]["weight"] == 3.0
    page.wait_for_selector("section:has(h2:text-is('History')) tbody tr")
    page.fill(weight, "5")
    page.keyboard.press("Tab")
    page.click("button:text-is('Apply')")
    reader.confirm("Apply")
    page.wait_for_selector("section:has(h2:text-is('History')) tbody tr >> nth=1")
    page.click("section:has(h2:text-is('History')) tbody tr >> nth=1 >> button:has-text('Edit')")
    page.wait_for_selector("text=it is not in force")
    assert page.input_value(weight) == "3"
    page.click("section:has(h2:text-is('History')) tbody tr >> nth=1 >> button:has-text('Restore')")
    reader.confirm("Restore")
    page.wait_for_selector("[role=status]:has-text('is in force')")
    assert site.ask("GET", "/policy")["tiers"][2]["weight"] == 3.0


def test_scaling_tells_the_advice_and_its_signal(reader: Reader) -> None:
    """Who pays for machines wants to know by what they are asked for."""
    reader.see("Scaling")
    reader.page.wait_for_selector("h2:text-is('emulated')")
    assert "Signal" in reader.text("main h3")
    assert "Advised" in reader.text(".facts")


def test_the_playground_streams_and_shows_what_the_queue_took(reader: Reader) -> None:
    """A question and its answer through everything that a client meets."""
    reader.see("Playground")
    page = reader.page
    page.select_option("label:has-text('Key') select", "paste")
    page.fill("label:has-text('API key') input", KEYS["acme"][0])
    page.select_option("label:has-text('Tier') select", "critical")
    page.fill("label:has-text('Tokens') input", "12")
    reader.until("document.querySelector('input[list]').value === 'emulated'")
    page.click("button:text-is('Ask')")
    reader.until("/ms/.test(document.querySelector('[data-testid=queue]')?.innerText ?? '')")
    page.wait_for_selector("[data-testid=answer][aria-busy=false]")
    assert len(reader.text("[data-testid=answer]")) > 10
    facts = reader.text(".facts")
    assert "critical" in facts
    assert "200" in facts
    assert "127.0.0.1-" in facts
    assert reader.faults() == []


def test_the_playground_makes_a_key_and_can_be_stopped(reader: Reader, site: Site) -> None:
    """Keys are shown once, so who has none at hand needs a new one."""
    reader.see("Playground")
    page = reader.page
    before = len(site.ask("GET", "/keys")["data"])
    page.select_option("label:has-text('Key') select", "make")
    page.select_option("label:has-text('Tenant') select", "beta")
    page.select_option("label:has-text('Tier') select", "background")
    page.click("button:text-is('Make the key')")
    page.wait_for_selector("label:has-text('API key') input")
    made = site.ask("GET", "/keys")["data"]
    assert len(made) == before + 1
    page.click("button:text-is('Ask')")
    page.click("button:text-is('Stop')")
    page.wait_for_selector("[data-testid=answer][aria-busy=false]")
    assert page.locator("[role=alert]").count() == 0, "it was stopped, and that is no fault"


def test_without_a_key_the_playground_says_what_a_client_would_be_told(
    browser: Any, site: Site
) -> None:
    """A refusal in words, and not a page that does nothing."""
    with reading(browser, site.url) as reader:
        reader.enter(ADMIN)
        reader.see("Playground")
        reader.until("document.querySelector('input[list]').value === 'emulated'")
        reader.page.click("button:text-is('Ask')")
        assert "API key" in reader.text("[role=alert]")
        assert "401" in reader.text(".facts")
        assert [each for each in reader.errors if "401" not in each] == []


def test_everything_is_reached_without_a_mouse(reader: Reader) -> None:
    """Over a slow remote desktop, or with hands that hold no mouse."""
    page = reader.page
    reader.see("Live")
    page.reload()
    page.wait_for_selector("h1:text-is('Live')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(f"Alt+{number}")
        page.wait_for_selector(f"h1:text-is('{view}')")
        reader.until("document.activeElement.tagName === 'H1'")
    page.focus("nav a:text-is('Replicas')")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-replica] button")
    page.focus("[data-replica] button")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    page.focus("button:text-is('Dark')")
    before = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("Space")
    assert page.evaluate("document.documentElement.dataset.theme") != before
