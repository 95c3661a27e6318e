"""The package: public names, import dependencies, and contents of the wheel."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# The import table of SPEC 1: module -> names.
TABLE: dict[str, str] = {
    "st_rl": "__version__",
    "st_rl.env": "VecEnv check_env",
    "st_rl.env.utils": "split_observations split_step",
    "st_rl.algorithms": "PPO APPO ATPPO TPPO EstimatorPPO EstimatorTPPO",
    "st_rl.algorithms.ppo": "PPO",
    "st_rl.algorithms.appo": "GET_PROB_FUNC APPOAlgoMixin APPO ATPPO",
    "st_rl.algorithms.tppo": "GET_PROB_FUNC TPPO",
    "st_rl.algorithms.estimator": "EstimatorAlgoMixin EstimatorPPO EstimatorTPPO",
    "st_rl.modules": (
        "build_actor_critic EmpiricalNormalization Normalizer RunningMeanStd Normalize MlpModel Conv2dModel "
        "Conv2dHeadModel Memory RandomNetworkDistillation ActorCritic Actor Critic ActorCriticRecurrent "
        "DeterministicPolicyMixin AMPDiscriminator AmpMixin AmpActorCritic AmpActorCriticRecurrent "
        "EncoderAmpActorCriticRecurrent ActorCriticMutex ActorCriticFieldMutex ActorCriticClimbMutex "
        "EncoderStateAc EncoderStateAcRecurrent EncoderActorCriticMixin EncoderActorCritic "
        "EncoderActorCriticRecurrent PrivilegeEstimatorMixin PrivilegeStateAc PrivilegeStateAcRecurrent "
        "EstimatorMixin StateAc StateAcRecurrent VisualActorCriticMixin VisualDeterministicRecurrent "
        "VisualDeterministicAC"
    ),
    "st_rl.modules.actor_critic": "ActorCritic Actor Critic get_activation",
    "st_rl.modules.actor_critic_recurrent": "ActorCriticRecurrent Memory ActorCriticHiddenState LstmHiddenState",
    "st_rl.modules.actor_critic_mutex": "ActorCriticMutex",
    "st_rl.modules.actor_critic_field_mutex": "ActorCriticFieldMutex ActorCriticClimbMutex",
    "st_rl.modules.all_mixer": "EncoderStateAc EncoderStateAcRecurrent",
    "st_rl.modules.amp_discriminator": "AMPDiscriminator AmpMixin AmpActorCritic AmpActorCriticRecurrent",
    "st_rl.modules.conv2d": "Conv2dModel Conv2dHeadModel",
    "st_rl.modules.deterministic_policy": "DeterministicPolicyMixin",
    "st_rl.modules.encoder_actor_critic": (
        "EncoderActorCriticMixin EncoderActorCritic EncoderActorCriticRecurrent EncoderAmpActorCriticRecurrent"
    ),
    "st_rl.modules.mlp": "MlpModel",
    "st_rl.modules.normalizer": "EmpiricalNormalization Normalize RunningMeanStd Normalizer",
    "st_rl.modules.rnd": "RandomNetworkDistillation",
    "st_rl.modules.state_adaptor": (
        "AdaptorActorHiddenState PrivilegeEstimatorMixin PrivilegeStateAc PrivilegeStateAcRecurrent"
    ),
    "st_rl.modules.state_estimator": "EstimatorActorHiddenState EstimatorMixin StateAc StateAcRecurrent",
    "st_rl.modules.utils": "get_activation_Cls conv2d_output_shape",
    "st_rl.modules.visual_actor_critic": "VisualActorCriticMixin VisualDeterministicRecurrent VisualDeterministicAC",
    "st_rl.runners": (
        "OnPolicyRunner build_runner TrialPruned AmpPolicyRunner TwoStageRunner DemonstrationSaver DaggerSaver "
        "DistillationRunner"
    ),
    "st_rl.runners.on_policy_runner": "OnPolicyRunner",
    "st_rl.runners.amp_policy_runner": "AmpPolicyRunner",
    "st_rl.runners.two_stage_runner": "TwoStageRunner",
    "st_rl.runners.demonstration": "DemonstrationSaver",
    "st_rl.runners.dagger_saver": "DaggerSaver",
    "st_rl.storage": (
        "RolloutStorage QueueRolloutStorage ActionLabelRollout SarsaRolloutStorage AmpRolloutStorage ReplayBuffer"
    ),
    "st_rl.storage.rollout_storage": (
        "RolloutStorage QueueRolloutStorage ActionLabelRollout SarsaRolloutStorage AmpRolloutStorage"
    ),
    "st_rl.storage.replay_buffer": "ReplayBuffer",
    "st_rl.storage.reply_buffer": "ReplayBuffer",
    "st_rl.storage.rollout_files.base": "RolloutFileBase",
    "st_rl.storage.rollout_files.rollout_dataset": "RolloutDataset",
    "st_rl.datasets.motion_loader": "AMPLoader",
    "st_rl.datasets.dagger_saver": "DaggerSaver",
    "st_rl.utils": "split_and_pad_trajectories unpad_trajectories store_code_state",
    "st_rl.utils.utils": (
        "split_and_pad_trajectories unpad_trajectories store_code_state get_obs_slice get_subobs_size "
        "get_subobs_by_components substitute_estimated_state wrap_to_pi quat_to_rotmat rotmat_to_euler_zxy "
        "rotmat_to_euler_yzx rotmat_to_euler_xzy"
    ),
    "st_rl.utils.collections": (
        "namedarraytuple is_namedarraytuple is_namedarraytuple_class is_namedtuple is_namedtuple_class "
        "namedarraytuple_like AttrDict"
    ),
    "st_rl.utils.buffer": (
        "buffer_from_example buffer_expand buffer_swap build_array torchify_buffer numpify_buffer buffer_to "
        "buffer_method buffer_func get_leading_dims"
    ),
    "st_rl.utils.ckpt_manipulator": "replace_encoder0",
    "st_rl.utils.data_compresser": "compress_normalized_image decompress_normalized_image",
    "st_rl.utils.data_compressor": "compress_normalized_image decompress_normalized_image",
    "st_rl.utils.metrics": "lin_vel_rmsd cost_of_transport",
    "st_rl.utils.neptune_utils": "NeptuneSummaryWriter",
    "st_rl.utils.wandb_utils": "WandbSummaryWriter",
}


# Writers extend TensorBoard's, so their modules are the point of use of that package.
WRITER_MODULES = {"st_rl.utils.neptune_utils", "st_rl.utils.wandb_utils"}


def find(module: str, name: str) -> object | None:
    """The object of that name; None if the module or the name is missing."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            return None
        raise


def run_python(code: str, *, cwd: Path, python_path: Path) -> str:
    """Run code in a new interpreter that sees only `python_path` beside what is installed; its standard output."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment["PYTHONPATH"] = str(python_path)
    # -P would hide the current folder, but Python 3.10 lacks it: the folder given as `cwd` holds no st_rl
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from, outside of the repository."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(REPOSITORY / name, folder)
    shutil.copytree(REPOSITORY / "st_rl", folder / "st_rl", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    """The wheel, built without network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tree / "dist")]
    built = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    (path,) = (tree / "dist").glob("*.whl")
    return path


class TestNames:
    @pytest.mark.parametrize("module", TABLE)
    def test_public_names_are_there(self, module: str):
        missing = [name for name in TABLE[module].split() if find(module, name) is None]
        assert missing == [], f"{module} lacks names that SPEC 1 promises"

    def test_both_spellings_of_a_module_hold_the_same_objects(self):
        from st_rl.storage import replay_buffer, reply_buffer
        from st_rl.utils import data_compresser, data_compressor

        assert reply_buffer.ReplayBuffer is replay_buffer.ReplayBuffer
        assert data_compressor.compress_normalized_image is data_compresser.compress_normalized_image
        assert data_compressor.decompress_normalized_image is data_compresser.decompress_normalized_image

    def test_every_import_path_gives_the_same_object(self):
        homes: dict[str, set[int]] = {}
        for module, names in TABLE.items():
            for name in names.split():
                homes.setdefault(name, set()).add(id(find(module, name)))
        assert [name for name, objects in homes.items() if len(objects) > 1] == []

    def test_overriding_the_documented_misspelling_takes_effect_under_the_correct_name(self):
        from st_rl.runners import OnPolicyRunner
        from st_rl.storage import RolloutStorage

        class Runner(OnPolicyRunner):
            def __init__(self):
                pass

            def init_writter(self, init_at_random_ep_len):
                self.heard = init_at_random_ep_len

        class Storage(RolloutStorage):
            def __init__(self):
                pass

            def reccurent_mini_batch_generator(self, *args, **kwargs):
                return iter([(args, kwargs)])

        runner = Runner()
        runner.init_writer(True)
        assert runner.heard is True
        assert list(Storage().recurrent_mini_batch_generator(4, num_epochs=2)) in (
            [((4, 2), {})],
            [((4,), {"num_epochs": 2})],
        )

    def test_exported_names_exist(self):
        for module in TABLE:
            package = importlib.import_module(module)
            for name in getattr(package, "__all__", []):
                assert hasattr(package, name), f"{module}.__all__ names {name}, which does not exist"


class TestImport:
    def test_import_needs_only_torch_and_numpy(self, tmp_path: Path):
        modules = sorted(set(TABLE) - WRITER_MODULES)
        code = f"""
import importlib, json, sys
import numpy, torch
def packages():
    return {{name.partition(".")[0] for name in sys.modules}}
before = packages()
for name in {modules!r}:
    importlib.import_module(name)
print(json.dumps(sorted(packages() - before - set(sys.stdlib_module_names))))
"""
        assert json.loads(run_python(code, cwd=tmp_path, python_path=REPOSITORY)) == ["st_rl"]

    def test_import_of_top_package_loads_no_subpackage(self, tmp_path: Path):
        code = "import st_rl, sys; print(sorted(m for m in sys.modules if m.startswith('st_rl.')))"
        assert run_python(code, cwd=tmp_path, python_path=REPOSITORY).strip() == "[]"

    def test_version_needs_no_installed_metadata(self, tree: Path):
        # without site-packages nothing is installed, so there is no metadata to read and no torch either
        command = [
            sys.executable,
            "-I",
            "-S",
            "-B",
            "-c",
            "import sys; sys.path.insert(0, sys.argv[1]); import st_rl; ",
        ]
        command[-1] += "print(st_rl.__version__, st_rl.__file__)"
        printed = subprocess.run([*command, str(tree)], capture_output=True, text=True, timeout=60)
        assert printed.returncode == 0, printed.stderr
        version, file = printed.stdout.split()
        assert re.fullmatch(r"\d+\.\d+\.\d+([a-z0-9.+]*)", version)
        assert Path(file).parent == tree / "st_rl"

    def test_works_through_python_path(self, tree: Path, tmp_path: Path):
        code = "import st_rl, st_rl.runners; print(st_rl.__file__)"
        printed = run_python(code, cwd=tmp_path, python_path=tree)
        assert Path(printed.strip()).parent == tree / "st_rl"


class TestWheel:
    def test_holds_every_file_of_the_package(self, tree: Path, wheel: Path):
        held = set(zipfile.ZipFile(wheel).namelist())
        wanted = {path.relative_to(tree).as_posix() for path in (tree / "st_rl").rglob("*") if path.is_file()}
        assert "st_rl/py.typed" in held
        assert "st_rl/sim/robots/quadruped.xml" in held, "the robots must travel with the package"
        assert sorted(wanted - held) == []

    def test_holds_nothing_else(self, wheel: Path):
        top = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
        assert {name for name in top if not name.endswith(".dist-info")} == {"st_rl"}

    def test_metadata_describes_the_package(self, wheel: Path):
        import st_rl

        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            (entries,) = (n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
            text, scripts = archive.read(metadata).decode(), archive.read(entries).decode()
        assert f"Version: {st_rl.__version__}" in text
        assert "License-Expression: BSD-3-Clause" in text
        extras = set(re.findall(r"^Provides-Extra: (\S+)$", text, re.MULTILINE))
        names = "sim warp gym mjlab export deploy video plot view wandb neptune sweep postgresql ray dev docs"
        assert extras == set(names.split())
        assert "st-rl = st_rl.cli:main" in scripts

    def test_imports_from_a_bare_folder(self, wheel: Path, tmp_path: Path):
        target = tmp_path / "target"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
        installed = subprocess.run(
            [*command, "--target", str(target), str(wheel)], capture_output=True, text=True, timeout=120
        )
        assert installed.returncode == 0, installed.stderr
        code = "import st_rl, st_rl.runners, st_rl.env; print(st_rl.__file__)"
        printed = run_python(code, cwd=tmp_path, python_path=target)
        assert Path(printed.strip()).parent == target / "st_rl"


def test_one_version_of_torch_is_pinned_for_every_machine():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [
        pin for pin in pins if not re.match(r"^[A-Za-z0-9_.-]+==[^+ ]+( ; python_version >= \"3\.\d+\")?$", pin)
    ] == []
    assert "torch==2.13.0" in pins


def test_make_venv_installs_packages_of_examples():
    """`gym:Pendulum-v1` of the README is rendered by pygame."""
    project = (REPOSITORY / "pyproject.toml").read_text()
    makefile = (REPOSITORY / "Makefile").read_text()
    extras = re.search(r"^EXTRAS := (\S+)$", makefile, re.MULTILINE)
    assert extras is not None
    installed = set(extras[1].split(","))
    assert {"sim", "gym", "export", "video", "plot"} <= installed
    gym = re.search(r"^gym = \[(.*)\]$", project, re.MULTILINE)
    assert gym is not None
    assert "pygame" in gym[1]
    pinned = {line.split("==")[0].lower() for line in (REPOSITORY / "constraints.txt").read_text().splitlines()}
    names = {name.lower() for name in re.findall(r'"([A-Za-z-]+)>=', gym[1])}
    assert names <= pinned
