"""The folder of a shared page, and the page in a browser."""

import functools
import http.server
import json
import re
import subprocess
import threading
from pathlib import Path

import pytest

from st_rl.export.share import ShareError, assets, find_packages, write_page
from st_rl.export.share.assets import FILES, PACKAGES, default_folder, is_installed
from st_rl.export.share.page import older_mjcf
from tests.browser import CHROMIUM, Browser


@pytest.fixture
def packages(tmp_path):
    """Packages with files that are named like the real ones."""
    modules = tmp_path / "web" / "node_modules"
    for name, version in PACKAGES.items():
        (modules / name).mkdir(parents=True)
        (modules / name / "package.json").write_text(json.dumps({"version": version}))
    for name in FILES:
        (modules / name).parent.mkdir(parents=True, exist_ok=True)
        (modules / name).write_text("import {\n\tControls\n} from 'three';\n")
    return modules


@pytest.fixture
def kit(tmp_path):
    folder = tmp_path / "kit"
    (folder / "robot" / "assets").mkdir(parents=True)
    (folder / "policy.onnx").write_bytes(b"onnx")
    (folder / "robot" / "robot.xml").write_text('<general input="pos" gainprm="35"/>')
    (folder / "robot" / "assets" / "leg.stl").write_bytes(b"mesh")
    return folder


def test_page_has_all_files_and_loads_none_from_elsewhere(packages, kit, tmp_path):
    page = tmp_path / "page"
    write_page(page, kit, {"inputs": {"base_lin_vel": {"must_be_estimated": True}}}, packages)
    assert json.loads((page / "robot.json").read_text()) == ["robot/assets/leg.stl", "robot/robot.xml"]
    assert (page / "robot" / "robot.xml").read_text() == '<general gainprm="35"/>'
    sources = {name: (page / name).read_text() for name in ("index.html", "page.js", "scene.js")}
    assert not re.search(r"https?://", "".join(sources.values()))
    for source in sources.values():
        for name in re.findall(r"""(?:from|src=|fetchFile\()\s*["']([^"']+)["']""", source):
            assert (page / name).is_file(), name
    assert "from './three.module.js'" in (page / "lib" / "OrbitControls.js").read_text()


def test_policy_that_sees_what_the_page_cannot_compute_is_refused(packages, kit, tmp_path):
    description = {"inputs": {"height_scan": {"must_be_estimated": True}}}
    with pytest.raises(ShareError, match="observes height_scan"):
        write_page(tmp_path / "page", kit, description, packages)
    assert not (tmp_path / "page").exists()


def test_packages_of_another_version_are_installed_again(packages, monkeypatch):
    folder, calls = packages.parent, []
    assert find_packages(folder) == packages
    (packages / "three" / "package.json").write_text('{"version": "0.1.0"}')
    assert not is_installed(folder)

    def npm(command, **options):
        calls.append(command)
        (packages / "three" / "package.json").write_text(json.dumps({"version": PACKAGES["three"]}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(assets.shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(assets.subprocess, "run", npm)
    assert find_packages(folder) == packages
    assert calls[0][:4] == ["/bin/npm", "install", "--prefix", str(folder)]
    assert f"three@{PACKAGES['three']}" in calls[0]


def test_without_npm_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(assets.shutil, "which", lambda name: None)
    with pytest.raises(ShareError, match=r"npm is not installed: install Node.js, or run .*npm install --prefix"):
        find_packages(tmp_path)


def test_npm_that_fails_is_quoted(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "npm error code ENOTFOUND\n")
    monkeypatch.setattr(assets.shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(assets.subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(ShareError, match="npm error code ENOTFOUND"):
        find_packages(tmp_path)


def test_only_the_new_attribute_is_removed_from_mjcf():
    text = '<general forcerange="-24 24" input="pos" biastype="affine"/><pid input="vel"/>'
    assert older_mjcf(text) == '<general forcerange="-24 24" biastype="affine"/><pid input="vel"/>'


class QuietServer(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.skipif(not is_installed(default_folder()), reason="st-rl share has not downloaded its packages yet")
def test_robot_follows_the_slider_and_a_push_in_a_browser(tmp_path):
    from st_rl.cli import main
    from st_rl.cli.support.run_folders.pretrained import pretrained_names

    if "quadruped-walk" not in pretrained_names():
        pytest.skip("the package has no pretrained:quadruped-walk")
    page = tmp_path / "page"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["share", "pretrained:quadruped-walk", str(page)]) == 0
    handler = functools.partial(QuietServer, directory=str(page))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Browser(320, 240) as browser:
            browser.open(f"http://127.0.0.1:{server.server_port}/")
            browser.wait("document.body?.dataset.time > 1", 60)
            set_slider(browser, "lin_vel_x", 0.8)
            browser.wait("document.body.dataset.forward > 0.6", 60)
            set_slider(browser, "lin_vel_x", 0)
            browser.wait("Math.abs(document.body.dataset.forward) < 0.2", 60)
            browser.click("Push")
            browser.wait("document.body.dataset.side > 0.3", 20)
            assert browser.evaluate("document.body.dataset.falls") == "0"
    finally:
        server.shutdown()
        server.server_close()


def set_slider(browser, name, value):
    browser.evaluate(
        f"(s => {{ s.value = {value}; s.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
        f"(document.getElementById({json.dumps(name)}))"
    )


def test_files_of_the_page_belong_to_the_package():
    folder = Path(assets.__file__).parent / "files"
    assert {"index.html", "page.js", "scene.js"} <= {path.name for path in folder.iterdir()}
