"""Device, number of robots and training settings that `st-rl train` takes unless options name them."""

import pytest

from st_rl.cli.commands.train import read_training
from st_rl.cli.support import task_source
from st_rl.cli.support.task_source import find_source
from st_rl.cli.support.training import device_defaults
from st_rl.cli.support.training.device_defaults import Gpu, choose_device, describe_choice
from st_rl.sim.tasks import TASKS

GIB = 2**30


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(device_defaults, "find_gpu", lambda device="cuda": None)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with 80 GiB, and MuJoCo Warp."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(device_defaults, "find_gpu", lambda device="cuda": Gpu("a GPU", 80 * GIB))
    monkeypatch.setattr(task_source, "find_spec", lambda name: name)


def chosen(task, *arguments):
    """Device, robots, iterations and hidden layers of a command."""
    options, training = read_training(find_source(task), arguments)
    number = options.num_envs or options.env.num_envs
    return options.device, number, training.runner.max_iterations, training.policy.actor_hidden_dims


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("arguments", [(), ("--device", "auto"), ("--device", "cpu")])
def test_defaults_without_gpu_are_those_of_the_task(task, arguments, no_gpu):
    source = find_source(task)
    options, training = read_training(source, arguments)
    assert (options.device, options.num_envs, options.env) == ("cpu", None, source.default_config)
    expected = TASKS[task].training
    assert training.runner.max_iterations == expected["max_iterations"]
    assert list(training.policy.actor_hidden_dims) == expected["policy"]["actor_hidden_dims"]


def test_auto_takes_gpu_and_its_settings(gpu):
    assert chosen("quadruped-walk") == ("cuda", 4096, 160, (256, 128, 128))
    assert chosen("humanoid-amp")[:3] == ("cuda", 2048, 550)
    assert chosen("quadruped-rough", "--device", "cuda:0")[:3] == ("cuda:0", 4096, 360)


def test_cpu_on_request(gpu):
    assert chosen("quadruped-walk", "--device", "cpu") == ("cpu", 256, 300, (128, 128))


def test_small_and_external_tasks_stay_on_the_cpu(gpu):
    assert chosen("balance")[:3] == ("cpu", 64, 40)
    assert choose_device(find_source("gym:Pendulum-v1"), "auto") == "cpu"


def test_without_warp_auto_is_the_cpu(gpu, monkeypatch):
    monkeypatch.setattr(task_source, "find_spec", lambda name: None)
    assert chosen("quadruped-walk")[:3] == ("cpu", 256, 300)


@pytest.mark.parametrize(("robots", "iterations"), [(64, 300), (256, 300), (1024, 230), (4096, 160), (16384, 160)])
def test_iterations_fit_typed_number_of_robots(robots, iterations, gpu):
    assert chosen("quadruped-walk", "--num-envs", str(robots))[1:3] == (robots, iterations)


def test_options_win_over_gpu_settings(gpu):
    assert chosen("quadruped-walk", "--iterations", "7", "--policy.actor-hidden-dims", "32")[2:] == (7, (32,))


def test_settings_file_names_device_and_size(gpu, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("device: cpu\n")
    assert chosen("quadruped-walk", "--config", str(file))[:3] == ("cpu", 256, 300)
    file.write_text("num_envs: 1024\n")
    assert chosen("quadruped-walk", "--config", str(file))[:3] == ("cuda", 1024, 230)


@pytest.mark.parametrize(("free_gib", "robots"), [(6.0, 4096), (5.9, 2048), (3.0, 1024), (0.5, 256)])
def test_fewer_robots_where_memory_is_short(free_gib, robots, gpu, monkeypatch):
    monkeypatch.setattr(device_defaults, "find_gpu", lambda device="cuda": Gpu("a GPU", int(free_gib * GIB)))
    assert chosen("quadruped-walk")[1] == robots
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert chosen("quadruped-walk")[1] == 4096


def test_line_says_what_was_chosen_and_how_to_change_it(gpu, monkeypatch):
    source = find_source("quadruped-walk")
    options, training = read_training(source, [])
    line = describe_choice(source, options, 4096, training.runner.max_iterations)
    assert line == "Chosen: cuda, 4096 robots, 160 iterations; --device, --num-envs, --iterations change it"
    monkeypatch.setattr(device_defaults, "find_gpu", lambda device="cuda": Gpu("a GPU", 4 * GIB))
    options, training = read_training(source, [])
    assert "2048 robots (GPU memory is short for 4096), 195" in describe_choice(source, options, 2048, 195)
