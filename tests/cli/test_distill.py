"""From a privileged teacher to a student's policy file on the command line."""

import json
import shutil

import pytest
import torch

from st_rl.cli import main

pytest.importorskip("mujoco")
SMALL = [
    *("--num-envs", "8", "--iterations", "2", "--runner.num-steps-per-env", "6", "--runner.engine", "eager"),
    *("--policy.actor-hidden-dims", "16", "--policy.critic-hidden-dims", "16"),
]
TEACHER = ["--env.privileged-actor", "--env.no-observe-linear-velocity", "--env.commands.lin-vel-x", "0", "0.7"]


def error_of(capsys, *arguments) -> str:
    assert main([*map(str, arguments)]) != 0
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("distill")


@pytest.fixture(scope="module")
def teacher(folder):
    assert main(["train", "quadruped-walk", *SMALL, *TEACHER, "--log-dir", str(folder / "teacher")]) == 0
    return folder / "teacher"


@pytest.fixture(scope="module")
def student(folder, teacher):
    options = ["--distillation.using-ppo", "--distillation.teacher-act-prob", "0.5", "--policy.rnn-hidden-size", "8"]
    arguments = ["distill", str(teacher), "quadruped-walk", *SMALL, *options]
    assert main([*arguments, "--distillation.distill-target", "kl", "--log-dir", str(folder / "student")]) == 0
    return folder / "student"


def test_recurrent_student_does_without_the_symmetry_of_the_task(tmp_path, capsys):
    small = [*SMALL[:2], "--iterations", "1", *SMALL[4:]]
    assert main(["train", "humanoid-walk", *small, "--log-dir", str(tmp_path / "teacher")]) == 0
    arguments = ["distill", str(tmp_path / "teacher"), "humanoid-walk", *small]
    assert main([*arguments, "--log-dir", str(tmp_path / "student")]) == 0
    assert "without the symmetry of the task" in capsys.readouterr().out
    algorithms = [
        json.loads((tmp_path / run / "config.json").read_text())["algorithm"] for run in ("teacher", "student")
    ]
    assert ["symmetry_cfg" in algorithm for algorithm in algorithms] == [True, False]


def test_student_is_recurrent_and_without_privileged_observations(student):
    config = json.loads((student / "config.json").read_text())
    algorithm, policy = config["algorithm"], config["policy"]
    assert (algorithm["class_name"], algorithm["using_ppo"], algorithm["distill_target"]) == ("TPPO", True, "kl")
    assert (algorithm["teacher_act_prob"], algorithm["label_action_with_critic_obs"]) == (0.5, True)
    assert algorithm["schedule"] == "fixed"
    assert (policy["class_name"], policy["rnn_type"], policy["rnn_hidden_size"]) == ("ActorCriticRecurrent", "gru", 8)
    task = json.loads((student / "run.json").read_text())["task_config"]
    assert task["privileged_actor"] is False
    assert task["observe_linear_velocity"] is False
    assert task["commands"]["lin_vel_x"] == [0, 0.7]


def test_run_folder_holds_a_small_copy_of_the_teacher(teacher, student):
    copy, best = (torch.load(path, weights_only=True) for path in (student / "teacher.pt", teacher / "best.pt"))
    assert set(copy) == {"model_state_dict", "obs_norm_state_dict", "iter"}
    assert all(torch.equal(copy["model_state_dict"][name], value) for name, value in best["model_state_dict"].items())
    settings = json.loads((student / "config.json").read_text())["algorithm"]["teacher_policy"]
    assert settings["actor_hidden_dims"] == [16]
    assert list(settings["obs_segments"])[-5:] == [
        "base_lin_vel", "base_height", "foot_contact", "foot_height", "properties",
    ]  # fmt: skip


def test_moved_student_run_is_resumed_evaluated_and_exported(student, teacher, tmp_path, capsys):
    moved = tmp_path / "elsewhere"
    shutil.copytree(student, moved)
    shutil.rmtree(student)
    try:
        assert main(["resume", str(moved), "--iterations", "1"]) == 0
        assert (moved / "model_3.pt").is_file()
        assert (
            main(["eval", str(moved), "--num-envs", "4", "--seconds", "1.2", "--push-speed", "0", "--no-fine-physics"])
            == 0
        )
        assert "50 solver iterations" not in capsys.readouterr().out
        if pytest.importorskip("onnxruntime") and pytest.importorskip("onnxscript"):
            assert main(["export", str(moved)]) == 0
    finally:
        shutil.copytree(moved, student)


def test_rejects_a_teacher_with_other_observations(teacher, tmp_path, capsys):
    message = error_of(
        capsys, "distill", teacher, "quadruped-walk", "--env.observe-linear-velocity", "--log-dir", tmp_path
    )
    assert "the teacher observes base_ang_vel, projected_gravity" in message
    assert "train it with --env.privileged-actor" in message
    assert not (tmp_path / "teacher.pt").exists()
    message = error_of(capsys, "distill", teacher, "balance", "--log-dir", tmp_path)
    assert f"{teacher} was trained for quadruped-walk: the teacher observes" in message


def test_wrong_command_lines_are_explained(teacher, student, capsys):
    assert "TEACHER or TASK is missing: st-rl distill TEACHER TASK" in error_of(capsys, "distill", "latest")
    assert "unknown task 'quadruped-wlak'; did you mean" in error_of(capsys, "distill", teacher, "quadruped-wlak")
    assert "already contains a run" in error_of(capsys, "distill", teacher, "quadruped-walk", "--log-dir", student)
    before = (student / "teacher.pt").stat().st_mtime_ns
    error_of(capsys, "distill", teacher, "quadruped-walk", "--log-dir", student)
    assert (student / "teacher.pt").stat().st_mtime_ns == before
    options = ("--checkpoint", "77", "--log-dir", student.parent / "nothing")
    assert "no checkpoint '77' in" in error_of(capsys, "distill", teacher, "quadruped-walk", *options)
    assert not (student.parent / "nothing").exists()
    assert "no run 'nobody'" in error_of(capsys, "distill", "nobody", "quadruped-walk")


def test_help_shows_an_example(capsys):
    assert main(["distill", "--help"]) == 0
    assert "st-rl train quadruped-walk --env.privileged-actor" in capsys.readouterr().out
