"""A lesson open in JupyterLab in a real Chromium, and the few moves that a test of a widget needs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page, sync_playwright

from tests.lab_server import Lab, running_lab

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # else cells out of sight are not in the page
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
# What JupyterLab itself says on a machine without language servers or a network; no fault of a lesson.
HARMLESS = ("favicon", "/lsp/", "lsp/status", "api/workspaces")


class LabPage:
    """A notebook in JupyterLab; `errors` collects what the browser's console reports as an error."""

    def __init__(self, page: Page, lab: Lab, pictures: Path) -> None:
        self.page, self.lab, self.pictures = page, lab, pictures
        self.errors: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note(self, message) -> None:
        place = message.location.get("url", "") if message.location else ""
        if message.type == "error" and not any(word in message.text + place for word in HARMLESS):
            self.errors.append(f"{message.text} ({place})")

    def open(self, path: str) -> None:
        """Open a notebook and wait until its kernel is connected (Run All does nothing before)."""
        self.page.goto(f"{self.lab.url}/lab/tree/{path}?token={self.lab.token}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self._wait(self._connected, 60, "the kernel did not connect")

    def run_all(self, seconds: float = 120) -> None:
        """Run every cell and wait until the last one has its number and the kernel is idle."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.locator("li[data-command='runmenu:run-all']").click()
        self._wait(self._finished, seconds, "the notebook did not finish")

    def cell(self, label: str) -> Locator:
        """The cell that holds the control labelled `label`."""
        found = self.page.locator(".jp-CodeCell").filter(
            has=self.page.locator(f".widget-label:text-is('{label}')")
        )
        return found.last

    def caption(self, label: str) -> str:
        """The caption of the figure above the control labelled `label`."""
        return self.cell(label).locator("figcaption").first.inner_text()

    def press(self, label: str, key: str = "ArrowRight", times: int = 1) -> str:
        """Press a key on the slider labelled `label`; returns the caption once it has changed."""
        before = self.caption(label)
        row = self.cell(label).locator(".widget-hslider").filter(has_text=label)
        handle = row.locator(".noUi-handle").first
        handle.focus()
        for _ in range(times):
            handle.press(key)
        self._wait(lambda: self.caption(label) != before, 20, f"the caption stayed {before!r}")
        return self.caption(label)

    def choose(self, label: str, option: str) -> str:
        """Choose `option` in the drop-down labelled `label`, found by that name; returns the changed caption."""
        before = self.caption(label)
        self.cell(label).get_by_label(label, exact=True).last.select_option(option)
        self._wait(lambda: self.caption(label) != before, 20, f"the caption stayed {before!r}")
        return self.caption(label)

    def screenshot(self, name: str, label: str | None = None) -> Path:
        """Keep a picture of the page, or of the cell that holds `label`, under build/screenshots."""
        path = self.pictures / f"{name}.png"
        (self.cell(label) if label else self.page).screenshot(path=path)
        return path

    def cell_errors(self) -> list[str]:
        """Tracebacks shown in the notebook."""
        return self.page.locator("[data-mime-type='application/vnd.jupyter.stderr']").all_inner_texts()

    def _connected(self) -> bool:
        sessions = self.lab.ask("/api/sessions")[1] or []
        return any(s["kernel"]["connections"] and s["kernel"]["execution_state"] == "idle" for s in sessions)

    def _finished(self) -> bool:
        cells = self.page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        return bool(cells) and all(any(c.isdigit() for c in text) for text in cells) and self._connected()

    def _wait(self, condition, seconds: float, otherwise: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                kept = self.screenshot("gave-up")
                raise AssertionError(
                    f"After {seconds:g} s {otherwise}; see {kept.name}. Console: {self.errors}"
                )
            self.page.wait_for_timeout(100)


@contextmanager
def open_lesson(notebook: Path, data: Path, home: Path, pictures: Path) -> Iterator[LabPage]:
    """Serve a copy of `notebook` without outputs (Lab saves as it goes) and open it."""
    folder = home / "repository" / "notebooks"
    folder.mkdir(parents=True)
    (folder.parent / "data").symlink_to(data, target_is_directory=True)
    copy_without_outputs(notebook, folder / notebook.name)
    write_settings(home / "jupyter_config_dir" / "lab" / "user-settings" / "@jupyterlab")
    pictures.mkdir(parents=True, exist_ok=True)
    start = f"notebooks/{notebook.name}"
    with running_lab(home, folder.parent, start) as lab, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = LabPage(browser.new_page(viewport={"width": 1280, "height": 1000}), lab, pictures)
            page.open(start)
            yield page
        finally:
            browser.close()


def copy_without_outputs(notebook: Path, target: Path) -> None:
    """Copy a notebook as if it had never been run."""
    content = nbformat.read(notebook, as_version=4)
    for cell in content.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(content, target)


def write_settings(folder: Path) -> None:
    """Settings of JupyterLab for this test's user."""
    for name, values in SETTINGS.items():
        path = folder / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
