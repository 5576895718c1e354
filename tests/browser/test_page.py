"""The reproduction's page in a real browser: `make test-browser`."""

import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from typer.testing import CliRunner

from tangograd.cli import app

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with two real claims."""
    folder = tmp_path_factory.mktemp("reproduction")
    names = ["figure-1", "noise-free"]
    done = CliRunner().invoke(
        app, ["reproduce", *names, "--quick", "--quiet", "--output", str(folder)]
    )
    assert done.exit_code == 0, done.output
    return folder / "index.html"


@pytest.fixture
def browser(tmp_path):
    assert BROWSER, "this needs chromium and chromedriver"
    assert DRIVER, "this needs chromium and chromedriver"
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def at_width(browser, width):
    """A viewport of this width, as on a phone; headless windows cannot be that narrow."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
    )


def test_what_is_shown(browser, page):
    at_width(browser, 1200)
    browser.get(page.as_uri())
    assert browser.title == "TANGO: the paper's claims, measured"
    assert "2 of 2" in browser.find_element(By.TAG_NAME, "main").text
    sections = browser.find_elements(By.TAG_NAME, "section")
    assert [s.get_attribute("id") for s in sections] == ["figure-1", "noise-free"]
    for section in sections:
        picture = section.find_element(By.TAG_NAME, "img")
        assert browser.execute_script("return arguments[0].naturalWidth", picture) > 1000
        assert picture.size["width"] > 600
        heads = [th.text for th in section.find_elements(By.TAG_NAME, "th")]
        assert heads == ["quantity", "expected", "measured", "n", "verdict"]
        assert all(cell.text for cell in section.find_elements(By.TAG_NAME, "td"))
    browser.find_element(By.LINK_TEXT, "Without noise, the error is of the order of δt").click()
    assert browser.current_url.endswith("#noise-free")


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_no_horizontal_scroll_and_no_error(browser, page, width):
    at_width(browser, width)
    browser.get(page.as_uri())
    assert browser.execute_script("return window.innerWidth") == width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


def test_a_phone_reads_the_figures(browser, page):
    at_width(browser, 360)
    browser.get(page.as_uri())
    section = browser.find_element(By.ID, "figure-1")
    assert not section.find_element(By.TAG_NAME, "thead").is_displayed()
    cells = section.find_elements(By.TAG_NAME, "td")
    assert all(cell.is_displayed() and cell.rect["x"] + cell.rect["width"] <= 360 for cell in cells)
    size = section.find_element(By.TAG_NAME, "td").value_of_css_property("font-size")
    assert float(size.removesuffix("px")) >= 14
