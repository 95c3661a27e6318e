"""The commands, configurations and code shown in the README, the guides and the examples work as shown."""

import ast
import copy
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from st_rl.algorithms import APPO, PPO
from st_rl.algorithms.discriminator_trainer import DiscriminatorOptions
from st_rl.modules import ActorCritic, ActorCriticRecurrent
from st_rl.runners import OnPolicyRunner, build_runner
from st_rl.runners.setup.train_config import RUNNER_KEYS
from tests.fakes import ClientEnv, EchoEnv

REPOSITORY = Path(__file__).resolve().parent.parent
# tests/sim/tasks/test_own_terms.py runs the other one, which is a command line of its own.
EXAMPLES = sorted(set((REPOSITORY / "examples").glob("*.py")) - {REPOSITORY / "examples/own_terms.py"})


def python_blocks(page: str) -> list[str]:
    """Python code blocks of a Markdown page."""
    return re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / page).read_text(), re.MULTILINE | re.DOTALL)


def documented_config() -> dict:
    """The first configuration of docs/configuration.md."""
    namespace: dict = {}
    exec(python_blocks("docs/configuration.md")[0], namespace)
    return {**namespace["config"], "strict": True}


def fragment(page: str, key: str) -> dict:
    """The value of a block that shows one key of a configuration, `"key": {...}`."""
    (block,) = (block for block in python_blocks(page) if block.startswith(f'"{key}"'))
    return ast.literal_eval("{" + block + "}")[key]


class WalkerEnv(EchoEnv):
    """The echo task with the segments assumed in docs/configuration.md."""

    def __init__(self):
        super().__init__(num_envs=4, num_obs=15, num_actions=6)
        self.obs_segments = OrderedDict(command=3, angular_velocity=3, gravity=3, joints=6)

    def _with_novelty(self, extras: dict) -> dict:
        groups = {**extras.get("observations", {}), "rnd_state": torch.zeros(self.num_envs, 2)}
        return {**extras, "observations": groups}

    def get_observations(self):
        obs, extras = super().get_observations()
        return obs, self._with_novelty(extras)

    def step(self, actions):
        obs, rewards, dones, infos = super().step(actions)
        return obs, rewards, dones, self._with_novelty(infos)


def test_readme_trains_and_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks("README.md")
    code = block.replace("learn(200)", "learn(2)").replace("model_200.pt", "model_2.pt")
    namespace: dict = {"MyVecEnv": lambda num_envs: EchoEnv(num_envs=8)}
    exec(code, namespace)
    assert namespace["actions"].shape == (8, 2)
    assert {"best.pt", "config.json", "model_2.pt"} <= {path.name for path in (tmp_path / "runs/first").iterdir()}


def test_commands_shown_exist():
    from st_rl.cli import COMMANDS

    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    shown = {command for page in pages for command in re.findall(r"\bst-rl ([a-z]+)", page.read_text())}
    assert shown
    assert sorted(shown - set(COMMANDS)) == []


def test_targets_shown_exist():
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        shown = set(re.findall(r"(?:^|`)make ([a-z]+)", (REPOSITORY / page).read_text(), re.MULTILINE))
        assert shown
        assert sorted(shown - targets) == [], page


def test_readme_fits_on_a_screen():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 90


def test_first_configuration_shown_is_complete():
    before = documented_config()
    config = copy.deepcopy(before)
    runner = build_runner("OnPolicyRunner", EchoEnv(), config)
    runner.learn(1)
    assert config == before


@pytest.mark.parametrize("key", ["rnd_cfg", "symmetry_cfg"])
def test_algorithm_options_shown_are_accepted(key: str):
    config = documented_config()
    config["algorithm"][key] = fragment("docs/configuration.md", key)
    runner = OnPolicyRunner(WalkerEnv(), config)
    runner.learn(1)
    assert (runner.alg.rnd is not None) == (key == "rnd_cfg")
    assert (runner.alg.symmetry is not None) == (key == "symmetry_cfg")


def test_recurrent_policy_shown_is_accepted():
    config = documented_config()
    config["policy"] = fragment("docs/first-steps.md", "policy")
    runner = OnPolicyRunner(EchoEnv(), config)
    runner.learn(1)
    assert runner.alg.actor_critic.is_recurrent


def test_motion_prior_shown_is_accepted():
    namespace: dict = {}
    exec(python_blocks("docs/motion-priors.md")[0], namespace)
    config = {**namespace["config"], "strict": True}
    config["algorithm"]["discriminator_cfg"] = fragment("docs/motion-priors.md", "discriminator_cfg")
    runner = build_runner(config["runner_class_name"], ClientEnv(), config)
    runner.learn(1)
    assert runner.alg.amp_obs_dim == 42


def documented_defaults(heading: str, page: str = "docs/configuration.md") -> dict[str, object]:
    """Default of every key in the table under a heading of a page, where one is given."""
    text = (REPOSITORY / page).read_text()
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    defaults: dict[str, object] = {}
    for keys, default in re.findall(r"^\| (`[^|]*`) \| ([^|]*?) \|", section, re.MULTILINE):
        names = re.findall(r"`(\w+)`", keys)
        try:
            value = ast.literal_eval(default.replace("`", "") or "''")
        except (ValueError, SyntaxError):
            continue  # words, such as "required"
        values = value if isinstance(value, tuple) else (value,) * len(names)
        defaults.update(zip(names, values, strict=True))
    return {name: value for name, value in defaults.items() if value != "" and name != "class_name"}


@pytest.mark.parametrize(
    ("heading", "classes", "page"),
    [
        ("Policy", [ActorCritic, ActorCriticRecurrent], "docs/configuration.md"),
        ("Algorithm: PPO", [PPO], "docs/configuration.md"),
        ("What is learned", [APPO], "docs/motion-priors.md"),
        ("Saturation, and what helps", [DiscriminatorOptions], "docs/motion-priors.md"),
    ],
)
def test_defaults_shown_equal_code(heading: str, classes: list[type], page: str):
    defaults: dict[str, object] = {}
    for cls in classes:
        parameters = inspect.signature(cls).parameters.values()
        defaults |= {parameter.name: parameter.default for parameter in parameters}
    shown = documented_defaults(heading, page)
    assert len(shown) >= 5
    for name, value in shown.items():
        default = defaults[name]
        assert (list(default) if isinstance(default, tuple) else default) == value, name


def test_every_key_of_a_runner_is_documented():
    text = (REPOSITORY / "docs/configuration.md").read_text()
    section = text.split("## Runner")[1].split("## Policy")[0]
    # The class names may also stand beside the parts that they name.
    documented = set(re.findall(r"`(\w+)`", section)) | {"policy_class_name", "algorithm_class_name"}
    assert sorted(RUNNER_KEYS - documented) == []


def test_api_pages_name_existing_objects():
    pages = sorted((REPOSITORY / "docs/api").rglob("*.md"))
    named = {name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)}
    assert len(named) > 40
    missing = sorted(name for name in named if not _exists(name))
    assert missing == []


def _exists(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def test_navigation_lists_every_page():
    navigation = (REPOSITORY / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = sorted(re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE))
    pages = sorted(path.relative_to(REPOSITORY / "docs").as_posix() for path in (REPOSITORY / "docs").rglob("*.md"))
    assert listed == sorted([*pages, "command-line.md"])  # the last is generated by docs/command_line.py


def test_command_line_page_shows_every_command_and_option():
    from st_rl.cli import COMMANDS

    spec = importlib.util.spec_from_file_location("command_line", REPOSITORY / "docs/command_line.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.render_page()
    for command in COMMANDS:
        assert f"\n## st-rl {command}\n" in page
        assert f"usage: st-rl {command}" in page
    for option in ("--minutes", "--push-speed", "--env.episode-length-s", "--algorithm.learning-rate"):
        assert option in page
    assert "─" not in page
    assert "-----" not in page


def test_troubleshooting_quotes_real_messages():
    texts: list[str] = []
    for path in (REPOSITORY / "st_rl").rglob("*.py"):
        constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        texts += [" ".join(value.split()) for value in constants if isinstance(value, str)]
    everything = "\n".join(texts)
    page = (REPOSITORY / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 30
    fragments = [part.strip() for message in quoted for part in message.split("…")]
    assert sorted(part for part in fragments if part not in everything) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path):
    command = [sys.executable, str(example), "--iterations", "2", "--log-dir", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "check_env:" not in done.stdout
    assert (tmp_path / "run" / "model_2.pt").exists()


def test_demonstrations_shown_are_saved_read_and_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    block = next(block for block in python_blocks("docs/datasets.md") if block.startswith("from"))
    policy = ActorCritic(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    namespace: dict = {"env": EchoEnv(num_envs=4), "policy": policy}
    exec(block, namespace)
    assert namespace["transition"].observation.shape == (4, 4)
    settings = fragment("docs/datasets.md", "runner")
    config = {**documented_config(), **settings, "pretrain_iterations": 1}
    config["algorithm"] = {"class_name": "TPPO", "teacher_policy": {"class_name": "ActorCritic"}}
    runner = build_runner("TwoStageRunner", EchoEnv(num_envs=4), config)
    runner.learn(2)
    assert runner.rollout_dataset.num_transitions_read == 24 * 4
